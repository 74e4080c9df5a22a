"""Notice between two polls that another thing arrives than before, for a fraction of what a poll costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fwtop.collect.mapped import PACKETS, Count

_RATE = 1.5  # times as many packets a second
_SIZE = 1.25  # times as many bytes a packet
_MIX = 0.1  # of the packets are of another protocol
_FEW = 50  # packets, of which the mix says nothing
_SLOW_PPS = 1000.0  # rates below are not told apart


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Running sums: what the interfaces received, and what the programs saw of it, by protocol class."""

    packets: int
    bytes: int
    classes: Count  # (classes, 2)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What came between two looks."""

    pps: float
    bytes_each: float
    mix: Count  # packets by class

    @classmethod
    def of(cls, before: Arrivals, now: Arrivals, seconds: float) -> _Stretch:
        packets, size = max(0, now.packets - before.packets), max(0, now.bytes - before.bytes)
        mix = (now.classes - before.classes)[:, PACKETS]
        return cls(packets / seconds, size / packets if packets else 0.0, mix)

    def differs(self, other: _Stretch) -> bool:
        """Tell stretches apart by rate, size and mix of the packets."""
        if _factor(self.pps + _SLOW_PPS, other.pps + _SLOW_PPS) > _RATE:
            return True
        if _factor(self.bytes_each + 1.0, other.bytes_each + 1.0) > _SIZE:
            return True
        mine, theirs = int(self.mix.sum()), int(other.mix.sum())
        if min(mine, theirs) < _FEW:
            return False
        return bool(np.abs(self.mix / mine - other.mix / theirs).max() > _MIX)


class Glance:
    """Compares what came since the last look with what came before it; `clock` is monotonic."""

    def __init__(self, arrivals: Callable[[], Arrivals], clock: Callable[[], float] = time.monotonic) -> None:
        self._arrivals = arrivals
        self._clock = clock
        self._before: tuple[float, Arrivals] | None = None
        self._stretch: _Stretch | None = None

    def look(self) -> bool:
        """Return whether another thing arrives now; False at the first two looks."""
        now, arrivals, known = self._clock(), self._arrivals(), self._stretch
        if self._before is not None and now > self._before[0]:
            self._stretch = _Stretch.of(self._before[1], arrivals, now - self._before[0])
        self._before = now, arrivals
        return known is not None and self._stretch is not None and self._stretch.differs(known)


def _factor(one: float, other: float) -> float:
    return max(one, other) / min(one, other)
