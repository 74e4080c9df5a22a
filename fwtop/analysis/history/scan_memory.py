"""Which ports each source has probed in the last minutes."""

from __future__ import annotations

from dataclasses import dataclass, field

_SOURCES = 4_096  # remembered at once; the oldest are evicted, so spoofed sources cost no more
_PAIRS = 512  # remembered per source


@dataclass
class Probes:
    """The distinct (destination, port) pairs of a source as hashes, and when it was seen (seconds)."""

    first: float
    last: float
    pairs: set[int] = field(default_factory=set)


@dataclass
class ScanMemory:
    """Bounded memory of probes, keyed by source hash."""

    sources: dict[int, Probes] = field(default_factory=dict)

    def add(self, source: int, pairs: list[int], now: float) -> Probes:
        """Record the pairs that a source probed; return all its probes."""
        known = self.sources.pop(source, None) or Probes(now, now)
        self.sources[source] = known  # at the end: ordered by time of last probe
        if len(known.pairs) < _PAIRS:
            known.pairs.update(pairs[: _PAIRS - len(known.pairs)])
        known.last = now
        return known

    def forget(self, before: float) -> None:
        """Forget sources last seen before a time, and the oldest beyond the limit."""
        for source in list(self.sources):
            if self.sources[source].last >= before and len(self.sources) <= _SOURCES:
                break
            del self.sources[source]
