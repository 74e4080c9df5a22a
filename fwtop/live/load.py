"""How busy the processors are, which of them to keep off, and whether traffic changes between two polls.

The scheduler doesn't keep this process off those that receive packets: softirq work belongs to no process, so
a console that wakes up on the receiving processor stays there, and competes with the receiver although
another processor is idle.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from fwtop.kernel.procfs import Ticks, parse_ticks, read_text
from fwtop.live.mapped import PACKETS, Count

FULL = 0.2  # a receiving processor that idles less has no time for us
_SATURATED, _RELIEVED = 0.1, 0.3  # idle share of the least busy processor: hysteresis
_RECEIVING = 0.01  # of a processor: observing its packets costs more than this where packets are received


class Processors:
    """The idle share of each processor, and the set of those to avoid."""

    def __init__(self) -> None:
        self._ticks = parse_ticks(read_text("/proc/stat"))
        self._allowed = os.sched_getaffinity(0)
        self._avoided: frozenset[int] = frozenset()
        self.cpu_saturated = False  # no processor that this process may use has time to spare

    def idle(self) -> dict[int, float]:
        """Return the share of time that each processor idled since the last call, 0 to 1.

        Updates `cpu_saturated`.
        """
        now, before = parse_ticks(read_text("/proc/stat")), self._ticks
        self._ticks = now
        idle: dict[int, float] = {}
        for number, ticks in now.items():
            had = before.get(number, Ticks())
            if number is not None and ticks.total > had.total:
                idle[number] = max(0.0, (ticks.idle - had.idle) / (ticks.total - had.total))
        most = max((share for number, share in idle.items() if number in self._allowed), default=1.0)
        self.cpu_saturated = most < (_RELIEVED if self.cpu_saturated else _SATURATED)
        return idle

    def avoid_receivers(self, costs: Sequence[float], idle: dict[int, float]) -> None:
        """Move all threads off the processors that are busy receiving, if any others remain.

        `costs[cpu]` is what observing costs there, as a share of that processor: it tells which ones receive.
        """
        avoided = choose_avoided(costs, idle, self._avoided)
        if avoided == self._avoided:
            return
        self._avoided = avoided
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # the thread has ended, or its cpuset shrank
                os.sched_setaffinity(int(thread), self._allowed - avoided or self._allowed)


def choose_avoided(costs: Sequence[float], idle: dict[int, float], avoided: frozenset[int]) -> frozenset[int]:
    """Return the processors to avoid: from when they are full until they receive little."""
    return frozenset(
        number
        for number, cost in enumerate(costs)
        if cost > _RECEIVING and (number in avoided or idle.get(number, 1.0) < FULL)
    )


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
