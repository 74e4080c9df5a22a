"""What rules matched so far, and their state as `status` reports it."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.mechanisms.mechanism import Count
from fwtop.guardian.records.entry import Entry
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus
from fwtop.rules.limits import as_kept, rounding_text

_ENTRY_SECONDS = 2.9  # between two readings of a rule's sources, whoever asks
_SHOWN = 50  # of them
_COUNT_SECONDS = 0.9  # kernel counters are read at most this often, whoever asks
_SHOWN_SOURCES = 200  # of a rule in a status answer


class RuleCounters:
    """The kernel's counters of all rules, as last read."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._read_at = 0.0
        self._counted_at = 0.0  # Unix seconds
        self._counts: dict[str, Count] = {}
        self._pps: dict[str, float] = {}
        self._entries_read: dict[str, tuple[float, dict[str, int]]] = {}  # by rule: when and what

    def read(self, *, force: bool = False) -> None:
        """Read the counters unless they are recent; rates are over the time between two readings."""
        now = time.monotonic()
        elapsed = now - self._read_at
        if elapsed < _COUNT_SECONDS and not force:
            return
        counts = self._kernel.counts()
        for rule_id, count in counts.items():
            before = self._counts.get(rule_id)
            if before is not None and elapsed >= _COUNT_SECONDS:
                self._pps[rule_id] = max(0, count.packets - before.packets) / elapsed
        self._counts, self._read_at = counts, now
        # Half way through: one kind of rule is read after another
        self._counted_at = time.time() - (time.monotonic() - now) / 2

    def counted(self, entry: Entry) -> Entry:
        """Return an entry with its present counts."""
        count = self._counts.get(entry.rule.id)
        return replace(entry, packets=count.packets, bytes=count.bytes) if count is not None else entry

    def busiest(self, rule: Rule) -> dict[str, int]:
        """Return the packets of a rule's busiest sources."""
        now = time.monotonic()
        before = self._entries_read.get(rule.id)
        if before is None or now - before[0] >= _ENTRY_SECONDS:
            before = self._entries_read[rule.id] = now, self._kernel.entries(rule, _SHOWN)
        return before[1]

    def sources_changed(self, rule_id: str) -> None:
        """Read a rule's sources anew: some of them may be gone."""
        self._entries_read.pop(rule_id, None)

    def forget(self, rule_id: str) -> None:
        """Forget a rule that ended."""
        self._pps.pop(rule_id, None)
        self._entries_read.pop(rule_id, None)

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
            counted_at=self._counted_at if entry.rule.id in self._counts else None,
            expires=wall + entry.expires if active else entry.ended,
            confirm_by=wall + entry.confirm_by if active and entry.confirm_by is not None else None,
            note=self._note(entry) if active else entry.note,
            entries=self.busiest(entry.rule) if entries else {},
            sources_total=len(entry.rule.match.sources) + entry.sources_cut,
            kept_per_second=kept.per_second if (kept := as_kept(entry.rule)) is not None else None,
        )
        return status.to_dict()

    def _note(self, entry: Entry) -> str:
        return "; ".join(
            filter(None, (self._kernel.compiled.place(entry.rule, entry.note), rounding_text(entry.rule)))
        )


def _shortened(rule: Rule) -> Rule:
    """Shorten a long list of sources for an answer."""
    return replace(rule, match=replace(rule.match, sources=rule.match.sources[:_SHOWN_SOURCES]))
