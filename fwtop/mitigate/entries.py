"""Which elements of a rule's sets matched most, read seldom: listing a set costs a process and its length."""

from __future__ import annotations

import time
from collections.abc import Callable

from fwtop.mitigate import nft_state
from fwtop.mitigate.run import CommandError
from fwtop.mitigate.sets import entry_counters
from fwtop.model.rule import Kind, Rule, families_of
from fwtop.model.xtables import COUNTED_ELEMENTS, set_name

_SECONDS = 2.9  # between two readings of a rule's sets, whoever asks
_SHOWN = 50


class EntryCounts:
    """Packets by element, for each rule."""

    def __init__(self, compiled: Callable[[Rule], dict[str, int]]) -> None:
        """Take what knows the busiest prefixes of compiled rules."""
        self._compiled = compiled
        self._read: dict[str, tuple[float, dict[str, int]]] = {}

    def of(self, rule: Rule) -> dict[str, int]:
        """Return the sources of a rule that matched most; a set that is gone counts as empty."""
        at_once = rule.kind in (Kind.XDP, Kind.TC)  # without listing the sources
        if not rule.match.sources or (len(rule.match.sources) > COUNTED_ELEMENTS and not at_once):
            return {}
        now = time.monotonic()
        before = self._read.get(rule.id)
        if before is not None and now - before[0] < _SECONDS:
            return before[1]
        counted = self._compiled(rule) if at_once else _counted(rule)
        self._read[rule.id] = (now, counted)
        return counted

    def forget(self, rule_id: str) -> None:
        """Drop what was read of a rule that is over."""
        self._read.pop(rule_id, None)


def _counted(rule: Rule) -> dict[str, int]:
    if rule.kind is Kind.NFTABLES:
        return nft_state.entry_counters(rule.id, top=_SHOWN)
    counted: dict[str, int] = {}
    families = families_of(rule.match.sources)
    for name in [set_name(rule.id, family) for family in rule.match.families if family in families]:
        try:
            counted |= entry_counters(name, top=_SHOWN)
        except CommandError:
            continue
    return counted
