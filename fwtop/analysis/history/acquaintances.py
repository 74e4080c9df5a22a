"""Sources that talked to this host over real TCP connections in the last minutes.

A measurement or a call agrees on its UDP stream over such a connection, which is silent while it flows.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import Traffic
from fwtop.model.traffic.packets import Mask

_MOST = 4_096  # remembered at once; the oldest are evicted
_SECONDS = 900.0


class Acquaintances(Struct):
    """Bounded memory of sources by their hash, each with the time of its last connection."""

    seen: dict[int, float] = field(default_factory=dict)

    def note(self, traffic: Traffic, connected: Mask) -> None:
        """Remember the sources of these packets."""
        now = traffic.started + traffic.seconds
        for key in np.unique(traffic.source_key[connected])[:_MOST].tolist():
            self.seen.pop(key, None)
            self.seen[key] = now
        for key in list(self.seen):
            if self.seen[key] >= now - _SECONDS and len(self.seen) <= _MOST:
                break
            del self.seen[key]

    def among(self, traffic: Traffic) -> Mask:
        """Mark the packets of remembered sources."""
        known = np.fromiter(self.seen, np.uint64, len(self.seen))
        return np.asarray(among(traffic.source_key, known))
