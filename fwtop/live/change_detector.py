"""Cheaply detect traffic changes between polls, at a fraction of the cost of a poll."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from fwtop.live.mapped import PACKETS, Count

_RATE_FACTOR = 1.5  # in packets a second
_SIZE_FACTOR = 1.25  # in bytes a packet
_MIX_SHARE = 0.1  # of the packets
_MIN_PACKETS = 50  # below which the protocol mix says nothing
_SLOW_PPS = 1000.0  # changes far below this rate are ignored


class Arrivals(Struct, frozen=True):
    """Running totals of the interfaces, and of the programs by protocol class."""

    packets: int
    bytes: int
    classes: Count  # (classes, 2)


class _Interval(Struct, frozen=True):
    pps: float
    packet_bytes: float
    mix: Count  # packets by class

    @classmethod
    def between(cls, before: Arrivals, now: Arrivals, seconds: float) -> _Interval:
        packets, size = max(0, now.packets - before.packets), max(0, now.bytes - before.bytes)
        mix = (now.classes - before.classes)[:, PACKETS]
        return cls(packets / seconds, size / packets if packets else 0.0, mix)

    def differs(self, other: _Interval) -> bool:
        """Compare packet rate, packet size and protocol mix."""
        if _factor(self.pps + _SLOW_PPS, other.pps + _SLOW_PPS) > _RATE_FACTOR:
            return True
        if _factor(self.packet_bytes + 1.0, other.packet_bytes + 1.0) > _SIZE_FACTOR:
            return True
        mine, theirs = int(self.mix.sum()), int(other.mix.sum())
        if min(mine, theirs) < _MIN_PACKETS:
            return False
        return bool(np.abs(self.mix / mine - other.mix / theirs).max() > _MIX_SHARE)


class ChangeDetector:
    """Compares the traffic of each interval between two calls with the interval before it."""

    def __init__(self, arrivals: Callable[[], Arrivals], clock: Callable[[], float] = time.monotonic) -> None:
        self._arrivals = arrivals
        self._clock = clock
        self._last: tuple[float, Arrivals] | None = None
        self._interval: _Interval | None = None

    def changed(self) -> bool:
        """Return whether traffic has changed since the last call; the first two calls return False."""
        now, arrivals, before = self._clock(), self._arrivals(), self._interval
        if self._last is not None and now > self._last[0]:
            self._interval = _Interval.between(self._last[1], arrivals, now - self._last[0])
        self._last = now, arrivals
        return before is not None and self._interval is not None and self._interval.differs(before)


def _factor(one: float, other: float) -> float:
    return max(one, other) / min(one, other)
