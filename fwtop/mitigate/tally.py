"""What rules matched so far, and their state in the words of an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fwtop.mitigate.entries import EntryCounts
from fwtop.mitigate.journal import Entry
from fwtop.mitigate.kernel import Count
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus, rule_status_to_dict

_COUNT_SECONDS = 0.9  # kernel counters are read at most this often, whoever asks
_SHOWN_SOURCES = 200  # of a rule in a status answer


class Tally:
    """The kernel's counters of all rules, as they were last read."""

    def __init__(
        self,
        read: Callable[[], dict[str, Count]],
        compiled: Callable[[Rule], dict[str, int]],
        place: Callable[[Rule, str], str] = lambda _, note: note,
    ) -> None:
        """Take what reads all counters, and knows of compiled rules the busiest sources and the place."""
        self._read = read
        self._read_at = 0.0
        self._counts: dict[str, Count] = {}
        self._pps: dict[str, float] = {}
        self._entries = EntryCounts(compiled)
        self._place = place

    def read(self, *, force: bool = False) -> None:
        """Read the counters, unless that was just done; rates are over the time between two readings."""
        now = time.monotonic()
        elapsed = now - self._read_at
        if elapsed < _COUNT_SECONDS and not force:
            return
        counts = self._read()
        for rule_id, count in counts.items():
            before = self._counts.get(rule_id)
            if before is not None and elapsed >= _COUNT_SECONDS:
                self._pps[rule_id] = max(0, count.packets - before.packets) / elapsed
        self._counts, self._read_at = counts, now

    def counted(self, entry: Entry) -> Entry:
        """Return an entry with what its rule has matched."""
        count = self._counts.get(entry.rule.id)
        return replace(entry, packets=count.packets, bytes=count.bytes) if count is not None else entry

    def busiest(self, rule: Rule) -> dict[str, int]:
        """Return packets by the sources of a rule that matched most."""
        return self._entries.of(rule)

    def forget(self, rule_id: str) -> None:
        """Drop the rate and the sources of a rule that is over."""
        self._pps.pop(rule_id, None)
        self._entries.forget(rule_id)

    def status_of(self, entry: Entry, *, entries: bool = False) -> dict[str, Any]:
        """Return a rule's state for an answer; with its busiest sources if `entries`."""
        counted = self.counted(entry)
        active = entry.state in ACTIVE_STATES
        wall = time.time() - time.monotonic()
        status = RuleStatus(
            rule=_shortened(entry.rule),
            state=entry.state,
            packets=counted.packets,
            bytes=counted.bytes,
            pps=self._pps.get(entry.rule.id, 0.0) if active else 0.0,
            expires=wall + entry.expires if active else entry.ended,
            confirm_by=wall + entry.confirm_by if active and entry.confirm_by is not None else None,
            note=self._place(entry.rule, entry.note) if active else entry.note,
            entries=self.busiest(entry.rule) if entries else {},
        )
        return {**rule_status_to_dict(status), "sources_total": len(entry.rule.match.sources)}


def _shortened(rule: Rule) -> Rule:
    """Cut a long list of sources: an answer must fit one message, and nobody reads 50,000 lines."""
    return replace(rule, match=replace(rule.match, sources=rule.match.sources[:_SHOWN_SOURCES]))
