"""The upkeep of a policy's rules: their time starts again, and what is missing of them is put back."""

from __future__ import annotations

import syslog
from collections.abc import Callable, Mapping

from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.records.entry import Entry
from fwtop.model.errors import FwtopError
from fwtop.model.rule import POLICY, State
from fwtop.model.text import safe_text

LogOnce = Callable[[str, FwtopError | str | None], None]


def renew(active: Mapping[str, Entry], now: float, keep: Callable[[str, None], object], log: LogOnce) -> None:
    """Start the time of a policy's rules again once half of it is over; what fails is tried again."""
    for entry in list(active.values()):
        rule = entry.rule
        lasts = entry.state is State.CONFIRMED and rule.created_by == POLICY
        if lasts and entry.expires - now < rule.ttl_seconds / 2:
            try:
                keep(rule.id, None)
            except FwtopError as error:
                log(f"policy {rule.id}", error)


def mend(active: Mapping[str, Entry], kernel: Kernel, repair: Callable[[str], object], log: LogOnce) -> None:
    """Repair the rules that are to be mended where somebody took something of them out of the kernel.

    Without any nothing is read: requests wait meanwhile, and a changed rule set takes 0.1 s and more to read.
    """
    if not any(entry.rule.mended for entry in active.values()):
        return
    for rule_id, short in kernel.look(active).items():
        entry = active.get(rule_id)
        if entry is None or not entry.rule.mended or short.obstructed:
            continue
        try:
            repair(rule_id)
        except FwtopError as error:
            log(f"mending {rule_id}", error)
        else:
            syslog.syslog(syslog.LOG_NOTICE, f"rule {rule_id} was repaired: {safe_text(short.text)}")
