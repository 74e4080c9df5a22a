"""How rates moved in the last minutes: one bounded history for each attack and each rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

TREND_SECONDS = 300
_STEP_SECONDS = 5
_MOST = 64  # attacks and rules that are remembered
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Trends(Struct):
    """Rates by key, the greatest of every five seconds, for five minutes."""

    _rates: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)

    def note(self, rates: Iterable[tuple[str, float]], now: float) -> None:
        """Note the present rates, in packets a second."""
        step = int(now) // _STEP_SECONDS
        for key, rate in rates:
            known = self._rates.setdefault(key, deque(maxlen=TREND_SECONDS // _STEP_SECONDS))
            if known and known[-1][0] == step:
                known[-1] = step, max(known[-1][1], rate)
            else:
                known.append((step, rate))
        while len(self._rates) > _MOST:
            del self._rates[min(self._rates, key=lambda key: self._rates[key][-1][0])]

    def spark(self, key: str, now: float, width: int) -> str:
        """Draw the last five minutes of a key in `width` cells, the newest at the right."""
        known = self._rates.get(key)
        if not known or width < 1:
            return ""
        last = int(now) // _STEP_SECONDS
        steps = TREND_SECONDS // _STEP_SECONDS
        cells = [0.0] * width
        for step, rate in known:
            place = width - 1 - (last - step) * width // steps
            if 0 <= place < width:
                cells[place] = max(cells[place], rate)
        top = max(cells)
        if top <= 0:
            return ""
        return "".join(_EIGHTHS[round(8 * rate / top) or (1 if rate > 0 else 0)] for rate in cells)
