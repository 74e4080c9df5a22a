"""What is remembered of sources for minutes: which ports they probed, and who had a real TCP connection."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import Traffic
from fwtop.model.traffic.packets import U32, U64, Mask

_SOURCES = 4_096  # remembered at once; the oldest are evicted, so spoofed sources cost no more
_PAIRS = 512  # remembered per source
_SECONDS = 900.0  # for which a connection is remembered


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


class Acquaintances(Struct):
    """Bounded memory of sources by their hash, each with the time of its last real TCP connection.

    A measurement or a call agrees on its UDP stream over such a connection, which is silent while it flows.
    """

    seen: dict[int, float] = field(default_factory=dict)

    def note(self, traffic: Traffic, connected: Mask) -> None:
        """Remember the sources of these packets."""
        now = traffic.started + traffic.seconds
        for key in np.unique(traffic.source_key[connected])[:_SOURCES].tolist():
            self.seen.pop(key, None)
            self.seen[key] = now
        for key in list(self.seen):
            if self.seen[key] >= now - _SECONDS and len(self.seen) <= _SOURCES:
                break
            del self.seen[key]

    def among(self, traffic: Traffic) -> Mask:
        """Mark the packets of remembered sources."""
        known = np.fromiter(self.seen, np.uint64, len(self.seen))
        return np.asarray(among(traffic.source_key, known))
