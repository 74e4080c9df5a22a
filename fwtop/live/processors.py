"""How busy each processor is, and keeping this process off those that receive packets.

The scheduler doesn't do that: softirq work belongs to no process, so a console that wakes up on the receiving
processor stays there, and competes with the receiver although another processor is idle.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from fwtop.kernel.procfs import parse_idle, read_text

FULL = 0.2  # a receiving processor that idles less has no time for us
_SATURATED, _RELIEVED = 0.1, 0.3  # idle share of the least busy processor: hysteresis
_RECEIVING = 0.01  # of a processor: observing its packets costs more than this where packets are received


class Processors:
    """The idle share of each processor, and the set of those to avoid."""

    def __init__(self) -> None:
        self._ticks = parse_idle(read_text("/proc/stat"))
        self._allowed = os.sched_getaffinity(0)
        self._avoided: frozenset[int] = frozenset()
        self.cpu_saturated = False  # no processor that this process may use has time to spare

    def idle(self) -> dict[int, float]:
        """Return the share of time that each processor idled since the last call, 0 to 1.

        Updates `cpu_saturated`.
        """
        now, before = parse_idle(read_text("/proc/stat")), self._ticks
        self._ticks = now
        idle: dict[int, float] = {}
        for number, (spare, all_ticks) in now.items():
            spare_before, all_before = before.get(number, (0, 0))
            if all_ticks > all_before:
                idle[number] = max(0.0, (spare - spare_before) / (all_ticks - all_before))
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
