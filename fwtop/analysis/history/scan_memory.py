"""Which ports each source has probed in the last minutes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from fwtop.model.traffic.packets import U32, U64

_SOURCES = 4_096  # remembered at once; the oldest are evicted, so spoofed sources cost no more
_PAIRS = 512  # remembered per source


class Probes(Struct):
    """The distinct (destination, port) pairs of a source, and when it was seen (seconds).

    The pairs are hashes of 4 bytes: a set of numbers would take 70 bytes for each, and a flood of all sources
    on all ports 150 MB.
    """

    last: float
    pairs: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))


class ScanMemory(Struct):
    """Bounded memory of probes, keyed by source hash."""

    sources: dict[int, Probes] = field(default_factory=dict)

    def add(self, source: int, pairs: U64, now: float) -> Probes:
        """Record the different pairs that a source probed, given as hashes; return all its probes."""
        known = self.sources.pop(source, None) or Probes(now)
        self.sources[source] = known  # at the end: ordered by time of last probe
        if len(known.pairs) < _PAIRS:
            new = pairs[:_PAIRS].astype(np.uint32)
            known.pairs = np.union1d(known.pairs, new)[:_PAIRS] if len(known.pairs) else new
        known.last = now
        return known

    def forget(self, before: float) -> None:
        """Forget sources last seen before a time, and the oldest beyond the limit."""
        for source in list(self.sources):
            if self.sources[source].last >= before and len(self.sources) <= _SOURCES:
                break
            del self.sources[source]
