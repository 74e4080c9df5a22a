"""Which elements of a rule's sets matched most, read seldom: listing a set costs a process and its length."""

from __future__ import annotations

import time

from fwtop.mitigate.run import CommandError
from fwtop.mitigate.sets import entry_counters

_SECONDS = 2.9  # between two readings of a rule's sets, whoever asks
_SHOWN = 50


class EntryCounts:
    """Packets by element, for each rule."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[float, dict[str, int]]] = {}

    def of(self, rule_id: str, set_names: list[str]) -> dict[str, int]:
        """Return the elements of a rule that matched most; a set that is gone counts as empty."""
        now = time.monotonic()
        before = self._read.get(rule_id)
        if before is not None and now - before[0] < _SECONDS:
            return before[1]
        counted: dict[str, int] = {}
        for name in set_names:
            try:
                counted |= entry_counters(name, top=_SHOWN)
            except CommandError:
                continue
        self._read[rule_id] = (now, counted)
        return counted

    def forget(self, rule_id: str) -> None:
        """Drop what was read of a rule that is over."""
        self._read.pop(rule_id, None)
