"""How often to look and to judge: less while the machine has no time to spare and nothing changes.

On a machine whose processors are all full of receiving, what the console takes is missing there: a tick costs
some 30 ms, a judgement as much. So while no processor has time to spare, and the attacks, the rules and the
mix of protocols stay as they are, a new picture is made less often. What changes is seen as soon as before:
the first ticks of an attack, those after a key, and those after a change come at the usual distances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

_SETTLED_SECONDS = 3.0  # without a change; as long as a window
_TICK_SECONDS, _JUDGE_SECONDS = 2.0, 6.0  # at least, while nothing changes
_USUAL_JUDGE_SECONDS = 1.0
_SURGE = 1.5  # judge at once when the packet rate changed by this factor since the last judgement
_MIX = 0.1  # of all packets: judge at the usual time when a protocol's share changed by more


class Pace:
    """Knows since when nothing changed; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = clock()
        self._picture: Hashable = None
        self._pressed = False
        self._judged = -_JUDGE_SECONDS
        self._judged_pps = 0.0
        self._judged_mix: dict[str, float] = {}

    def changed(self) -> None:
        """Go on at the usual pace: somebody wants to see what comes of a key."""
        self._changed = self._clock()

    def note(self, *, pressed: bool, picture: Hashable) -> None:
        """Take in whether the machine has time to spare, and what must stay the same for being calm."""
        self._pressed = pressed
        if picture != self._picture:
            self._picture = picture
            self.changed()

    @property
    def saving(self) -> bool:
        """Whether pictures are made less often."""
        return self._pressed and self._clock() - self._changed >= _SETTLED_SECONDS

    def tick_seconds(self, wanted: float) -> float:
        """Return the time to the next tick, of one that is usually `wanted`."""
        return max(wanted, _TICK_SECONDS) if self.saving else wanted

    def judge_now(self, pps: float, mix: Mapping[str, float]) -> bool:
        """Tell whether this packet rate and these shares of protocols are to be judged now, and note it."""
        now, wait = self._clock(), _USUAL_JUDGE_SECONDS
        low, high = sorted((pps + 1.0, self._judged_pps + 1.0))
        if self.saving and not self._moved(mix):
            wait = _JUDGE_SECONDS
        if now - self._judged < wait and high <= low * _SURGE:
            return False
        self._judged, self._judged_pps, self._judged_mix = now, pps, dict(mix)
        return True

    def _moved(self, mix: Mapping[str, float]) -> bool:
        names = mix.keys() | self._judged_mix.keys()
        return any(abs(mix.get(name, 0.0) - self._judged_mix.get(name, 0.0)) > _MIX for name in names)
