"""What is asked for while somebody looks: the machine's rules and the trends of the last days."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from fwtop.analysis.rule_readings import Change
from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.ui.actions.desk import Desk
from fwtop.ui.lists.history import HistoryAnswer
from fwtop.ui.lists.rule_state import MachineRules

_SHOWN_SECONDS = 2.0
_HIDDEN_SECONDS = 30.0  # for the alarms
_FIRST_SECONDS = 3.0  # until the first time while hidden: numbers, and an attack's name, come first
_TREND_SECONDS = 20.0  # averages a minute and an hour change no faster


class MachineRulesWatch:
    """Keeps `rules` up to date; `changed` gets the alarms that began or ended with each reading."""

    def __init__(self, desk: Desk, changed: Callable[[Sequence[Change]], None]) -> None:
        self.rules = MachineRules()
        self._desk = desk
        self._changed = changed
        self._asking = False
        self._asked = time.monotonic() + _FIRST_SECONDS - _HIDDEN_SECONDS

    def refresh(self, statuses: Sequence[RuleStatus], *, shown: bool) -> None:
        """Ask if that is due; called with every snapshot."""
        now = time.monotonic()
        if self._asking or now - self._asked < (_SHOWN_SECONDS if shown else _HIDDEN_SECONDS):
            return
        self._asking, self._asked = True, now
        self._desk.begin(self._fetch, statuses, group="machine rules")

    async def _fetch(self, statuses: Sequence[RuleStatus]) -> None:
        try:
            found = await self._desk.controls.ruleset()
        except FwtopError:  # the screen reports a lost guardian
            return
        finally:
            self._asking = False
        if found is None:  # not read yet, or there is none
            self._asked = time.monotonic() - _HIDDEN_SECONDS
        else:
            self._changed(self.rules.take(found, statuses))


class TrendWatch:
    """Keeps the newest answer while it is shown."""

    def __init__(self, desk: Desk) -> None:
        self.answer = HistoryAnswer()
        self._desk = desk
        self._asking = False
        self._asked = -math.inf

    def refresh(self, now: float) -> None:
        """Ask for the trends at a time, if the last answer is old."""
        if not self._asking and not 0 <= now - self._asked < _TREND_SECONDS:
            self._asking, self._asked = True, now
            self._desk.begin(self._fetch, now, group="trends", exclusive=True)

    async def _fetch(self, now: float) -> None:
        try:
            self.answer = HistoryAnswer(await self._desk.controls.trends(now))
        except FwtopError as error:
            self.answer = HistoryAnswer(problem=safe_text(error))
        finally:
            self._asking = False
        self._desk.redraw()
