"""The processors that receive packets: what is left of them, and keeping this process out of their way.

The scheduler doesn't: softirq work is nobody's process, so a console that wakes up on the receiving
processor stays there, and takes from the receiver what another processor had to spare.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from fwtop.collect.procfs import parse_idle, read_text

FULL = 0.2  # a receiving processor that idles less lacks what we take
_PRESSED, _RELIEVED = 0.1, 0.3  # no processor idles more than this; one does so again
_MUCH = 0.01  # of a processor: what watching its packets costs, below which it doesn't count as receiving


class Processors:
    """Follows how much each processor idles, and which of them to leave alone."""

    def __init__(self) -> None:
        self._ticks = parse_idle(read_text("/proc/stat"))
        self._allowed = os.sched_getaffinity(0)
        self._avoided: frozenset[int] = frozenset()
        self.pressed = False  # no processor that this process may use has time to spare

    def idle(self) -> dict[int, float]:
        """Return the share of time that each processor idled since the last call, 0 to 1.

        Tells anew whether this process is pressed for time.
        """
        now, before = parse_idle(read_text("/proc/stat")), self._ticks
        self._ticks = now
        idle: dict[int, float] = {}
        for number, (spare, all_ticks) in now.items():
            spare_before, all_before = before.get(number, (0, 0))
            if all_ticks > all_before:
                idle[number] = max(0.0, (spare - spare_before) / (all_ticks - all_before))
        most = max((share for number, share in idle.items() if number in self._allowed), default=1.0)
        self.pressed = most < (_RELIEVED if self.pressed else _PRESSED)
        return idle

    def keep_off(self, costs: Sequence[float], idle: dict[int, float]) -> None:
        """Move this process off the processors that are full with receiving, while there are others.

        `costs` are by processor what watching costs there, as shares of it: they tell who receives.
        """
        avoided = choose_avoided(costs, idle, self._avoided)
        if avoided == self._avoided:
            return
        self._avoided = avoided
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended, or a cpuset was narrowed meanwhile
                os.sched_setaffinity(int(thread), self._allowed - avoided or self._allowed)


def choose_avoided(costs: Sequence[float], idle: dict[int, float], avoided: frozenset[int]) -> frozenset[int]:
    """Return the processors to leave alone: full when entered here, and receiving much until they leave."""
    return frozenset(
        number
        for number, cost in enumerate(costs)
        if cost > _MUCH and (number in avoided or idle.get(number, 1.0) < FULL)
    )
