"""Which ports each source has probed over the last minutes: slow scans don't show in one window."""

from __future__ import annotations

from dataclasses import dataclass, field

_SOURCES = 4_096  # remembered at once: the oldest go first, so that forged sources cost no more
_PAIRS = 512  # remembered of one source


@dataclass
class Probes:
    """One source's distinct (destination, port) pairs, as hashes, and when it was seen (seconds)."""

    first: float
    last: float
    pairs: set[int] = field(default_factory=set)


@dataclass
class ScanMemory:
    """Bounded memory of probes, keyed by source hash."""

    sources: dict[int, Probes] = field(default_factory=dict)

    def add(self, source: int, pairs: list[int], now: float) -> Probes:
        """Note what a source probed; returns all that is known of it."""
        known = self.sources.pop(source, None) or Probes(now, now)
        self.sources[source] = known  # at the end: the order is that of the last sight
        if len(known.pairs) < _PAIRS:
            known.pairs.update(pairs[: _PAIRS - len(known.pairs)])
        known.last = now
        return known

    def forget(self, before: float) -> None:
        """Drop sources that were last seen before a time, and the oldest beyond the bound."""
        for source in list(self.sources):
            if self.sources[source].last >= before and len(self.sources) <= _SOURCES:
                break
            del self.sources[source]
