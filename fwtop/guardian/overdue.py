"""Give sysctls back whose time is over although their guardian did not: it is stopped, hangs, or is gone.

Everything needed is on the tmpfs, so the guardian's lock is not waited for. What was
given back is marked there: a guardian that goes on, or the next one, leaves the sysctl as it is from then on.
"""

from __future__ import annotations

import contextlib
import os
import syslog
import time
from pathlib import Path

from fwtop.guardian.mechanisms.settings import restore
from fwtop.guardian.records.entry import deadline_of
from fwtop.guardian.records.files import Records, boot_id, lock_path_of
from fwtop.guardian.records.former import Changed, FormerState
from fwtop.kernel import namespaces
from fwtop.kernel.descriptors import closing, is_held
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NOTHING = "none"  # instead of a time
SLACK_SECONDS = 1.0  # a guardian that runs has ended the rule by then
_RETRY_SECONDS = 10.0


def uptime_of(moment: float | None) -> str:
    """Return a time of CLOCK_MONOTONIC as whole seconds of /proc/uptime, `NOTHING` for None."""
    if moment is None:
        return NOTHING
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return str(int(uptime + moment - time.monotonic()))


def give_back_here(run_directory: Path) -> tuple[float | None, list[str]]:
    """Give back what is overdue in this namespace.

    Returns when to look again, CLOCK_MONOTONIC seconds (None: nothing is changed), and what was done.
    """
    number = os.stat("/proc/self/ns/net").st_ino
    records = Records(run_directory, namespaces.cookie(), boot_id(), number)
    values = _Values(records)
    now = time.monotonic()
    ends = {item.rule_id: _end(run_directory, number, records, item.rule_id) for item in values.settings()}
    over = {rule_id for rule_id, end in ends.items() if end + SLACK_SECONDS <= now}
    later = [end for rule_id, end in ends.items() if rule_id not in over]
    try:
        restore(values, over)
    except FwtopError as error:
        syslog.syslog(syslog.LOG_ERR, safe_text(f"overdue: {error}"))
        later.append(now + _RETRY_SECONDS)
    for line in values.lines:
        syslog.syslog(syslog.LOG_WARNING, line)
    return min(later, default=None), values.lines


def give_back_everywhere(run_directory: Path) -> list[str]:
    """Give back what is overdue in every network namespace; returns a line for each sysctl.

    It leaves this process in any of them.
    """
    lines: list[str] = []
    waiting = {path.parent.name for path in run_directory.glob("state-*/setting-*.json")}
    paths = namespaces.everywhere() if waiting else {}
    for name in sorted(waiting):
        _, cookie, inode = name.split("-")
        path = paths.get(int(inode)) if inode.isdigit() else None
        if path is None:
            continue  # it is gone, and its sysctls with it
        with (
            contextlib.suppress(OSError, FwtopError),
            closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor,
        ):
            namespaces.enter(descriptor)
            if cookie == str(namespaces.cookie()):
                lines += give_back_here(run_directory)[1]
    return lines


def _end(run_directory: Path, number: int, records: Records, rule_id: str) -> float:
    """Return when a rule ends, CLOCK_MONOTONIC seconds.

    A rule without a record is over; but while a guardian lives, that is for it to say.
    """
    record = records.record(f"rule-{rule_id}")
    try:
        return deadline_of(record["state"], float(record["expires"]), record["confirm_by"])
    except (KeyError, TypeError, ValueError):
        return time.monotonic() + _RETRY_SECONDS if is_held(lock_path_of(run_directory, number)) else 0.0


class _Values(FormerState):
    """The old values, of which somebody else than the guardian gives some back."""

    def __init__(self, records: Records) -> None:
        super().__init__(records, lambda _: None)
        self.lines: list[str] = []  # what was done

    def settings(self) -> list[Changed]:
        return [item for item in super().settings() if not self.is_given_back(item)]

    def forget_setting(self, changed: Changed) -> None:
        self.mark_given_back(changed)
        self.lines.append(
            f"rule {changed.rule_id} was over and its guardian did nothing: "
            f"{changed.name} has its old value {changed.old} again"
        )
