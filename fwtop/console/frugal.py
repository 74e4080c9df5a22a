"""What keeps the console small and calm: a refresh rate that adapts, rare collections, memory given back.

On a machine whose CPUs are all busy receiving, the console competes with packet processing: a tick costs
about 30 ms, and so does a judgement. While no CPU is idle and the attacks, the rules and the protocol mix
stay the same, snapshots are built and judged less often. On a calm machine (no attack, no active rule,
steady traffic) fwtop is one of many programs: a snapshot a second and a judgement every two are enough. So
they are on the screen of an attack that stays as it is; a recorder judges that each second, because its
automatic rules follow. Changes still appear as fast as before: an attack's first ticks, those after a key
press and those after a change in calm traffic run at the normal rate, and a change in an attack's rate brings
the next tick forward.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Hashable, Mapping

_SETTLED_SECONDS = 4.5  # without a change: then one window was judged that began after it
_SLOW_TICK_SECONDS, _SLOW_JUDGE_SECONDS = 2.0, 6.0  # minimum intervals at the reduced rate
_STEADY_TICK_SECONDS, _STEADY_JUDGE_SECONDS = 1.0, 2.0  # in calm, or in an attack that stays as it is
_UNWATCHED_SECONDS = 4.0  # for both, in calm, if nobody looks: a snapshot tells of all since the last
_NORMAL_JUDGE_SECONDS = 1.0
_CHECK_SECONDS = 0.25  # between two looks for a change in calm traffic: an attack must not wait for the tick
_EARLY_SECONDS = 1.0  # between two ticks that a change in traffic brought forward
_EARLY = 0.1  # ticks are never exactly on time: a judgement may be due this much earlier
_SURGE = 1.5  # judge immediately if the packet rate has changed by this factor since the last judgement
_MIX = 0.1  # judge at the normal rate if a protocol's or port's share has changed by more than this
_ENDS = 0.02  # the same for the share that ended in one place
_LEAP = 0.25  # judge immediately if that has changed by more than this: a rule shows its effect, or has ended


class RefreshRate:
    """Decides when to tick and judge, from the time of the last change; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, watched: bool = True) -> None:
        """Without `watched`, nobody looks: calm seconds are merged."""
        self._watched = watched
        self._clock = clock
        self._last_change = clock()
        self._fingerprint: Hashable = None
        self._cpu_saturated = False
        self._calm = False
        self._early = -_EARLY_SECONDS
        self._judged = -_SLOW_JUDGE_SECONDS
        self._judged_pps = 0.0
        self._judged_mix: dict[str, float] = {}
        self._judged_ends: dict[str, float] = {}

    def changed(self) -> None:
        """Return to the normal rate, e.g. after a key press whose effect the operator wants to see."""
        self._last_change = self._clock()

    def update(self, *, cpu_saturated: bool, calm: bool, fingerprint: Hashable) -> None:
        """Record CPU saturation, and a fingerprint that stays equal while nothing worth showing changes.

        `calm` means that there is neither an attack nor an active rule.
        """
        self._cpu_saturated = cpu_saturated
        if (calm, fingerprint) != (self._calm, self._fingerprint):
            self._calm, self._fingerprint = calm, fingerprint
            self.changed()

    @property
    def reduced(self) -> bool:
        """Whether snapshots are currently built less often."""
        return self._cpu_saturated and self._is_settled()

    @property
    def _steady_seconds(self) -> tuple[float, float]:
        """Intervals of ticks and of judgements in steady traffic; 0: traffic isn't steady."""
        if not self._is_settled():
            return 0.0, 0.0
        if self._calm and not self._watched:
            return _UNWATCHED_SECONDS, _UNWATCHED_SECONDS
        return _STEADY_TICK_SECONDS, _STEADY_JUDGE_SECONDS

    def _is_settled(self) -> bool:
        return self._clock() - self._last_change >= _SETTLED_SECONDS

    def tick_seconds(self, normal: float) -> float:
        """Return the interval until the next tick, given the normal one."""
        return max(normal, self._steady_seconds[0], _SLOW_TICK_SECONDS if self.reduced else 0.0)

    def check_seconds(self, normal: float) -> float:
        """Return how long to wait before looking whether traffic has changed, given the normal interval."""
        return min(normal, _CHECK_SECONDS) if self._calm else normal

    def tick_early(self, normal: float) -> bool:
        """Return whether to tick now because traffic has changed, and not only when the tick is due.

        In calm this may be an attack's beginning: the normal rate returns. The rate of a known attack varies
        all the time; its next tick tells whether more than that has changed.
        """
        if self._calm and self.tick_seconds(normal) > normal:
            self.changed()
            return True
        if self._clock() - self._early < _EARLY_SECONDS:  # bursts must not make every check a tick
            return False
        self._early = self._clock()
        return True

    def judge_now(self, pps: float, mix: Mapping[str, float], ends: Mapping[str, float]) -> bool:
        """Return whether a judgement is due at this packet rate; True resets the timer.

        `mix` has the shares of protocols and, in an attack, of ports; `ends` those of the rules and layers
        where packets ended.
        """
        now, wait = self._clock(), _NORMAL_JUDGE_SECONDS
        low, high = sorted((pps + 1.0, self._judged_pps + 1.0))
        steady = not _moved(mix, self._judged_mix, _MIX) and not _moved(ends, self._judged_ends, _ENDS)
        if steady:
            wait = max(wait, self._steady_seconds[1], _SLOW_JUDGE_SECONDS if self.reduced else 0.0)
        sudden = high > low * _SURGE or _moved(ends, self._judged_ends, _LEAP)
        if now - self._judged < wait - _EARLY and not sudden:
            return False
        self._judged, self._judged_pps = now, pps
        self._judged_mix, self._judged_ends = dict(mix), dict(ends)
        return True


def _moved(shares: Mapping[str, float], before: Mapping[str, float], most: float) -> bool:
    names = shares.keys() | before.keys()
    return any(abs(shares.get(name, 0.0) - before.get(name, 0.0)) > most for name in names)


# Most objects of a tick are freed by their reference counts. Python's usual thresholds would walk through all
# that was ever made several times a second: a fifth of the console's time on a calm machine.
_YOUNG, _MIDDLE, _OLD = 10_000, 10, 20
_RETURN_SECONDS = 3.0  # less than a tick takes in calm
_LIBC = ctypes.CDLL(None)


def collect_seldom() -> None:
    """Collect after many more new objects than usual."""
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def keep_out_of_collections() -> None:
    """Exempt everything that exists from later collections; for when a long-lived part has been built."""
    gc.collect()
    gc.freeze()
    _LIBC.malloc_trim(0)


class FreedMemory:
    """Returns to the system what lies free between the heap's blocks, 4 to 6 MiB after some ticks, in 1 ms.

    By itself, malloc(3) returns only the free memory at the heap's end.
    """

    def __init__(self) -> None:
        self._due = time.monotonic() + _RETURN_SECONDS

    def give_back(self) -> None:
        """Return it, if that was long enough ago."""
        if (now := time.monotonic()) >= self._due:
            _LIBC.malloc_trim(0)
            self._due = now + _RETURN_SECONDS
