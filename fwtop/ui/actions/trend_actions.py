"""Asking for the trends of the last days, while somebody looks at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.ui.drawing.guarded import Begin
from fwtop.ui.feed import Controls
from fwtop.ui.lists.panel import Panel
from fwtop.ui.state.history import HistoryAnswer

_EVERY_SECONDS = 20.0  # averages a minute and an hour change no faster


class TrendActions:
    """Keeps the newest answer; independent of the screen.

    `start` begins a request; `redraw` shows the answer.
    """

    def __init__(
        self,
        panels: Iterable[Panel],
        controls: Controls,
        *,
        start: Begin,
        redraw: Callable[[], None],
    ) -> None:
        self.answer = HistoryAnswer()
        self._panels = tuple(panels)
        self._controls = controls
        self._start = start
        self._redraw = redraw
        self._asking = False
        self._asked = -math.inf

    def refresh(self, now: float) -> None:
        """Ask for the trends at a time, if they are visible and the last answer is old."""
        visible = any(panel.display for panel in self._panels)
        if visible and not self._asking and not 0 <= now - self._asked < _EVERY_SECONDS:
            self._asking, self._asked = True, now
            self._start(self._fetch, now, group="trends", exclusive=True)

    async def _fetch(self, now: float) -> None:
        try:
            self.answer = HistoryAnswer(await self._controls.trends(now))
        except FwtopError as error:
            self.answer = HistoryAnswer(problem=safe_text(error))
        finally:
            self._asking = False
        self._redraw()
