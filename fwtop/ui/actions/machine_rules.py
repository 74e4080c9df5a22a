"""Asks for the machine's rules: often while they are shown, seldom otherwise, for the alarms."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fwtop.analysis.rule_alarms import Change
from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.ui.drawing.guarded import Begin
from fwtop.ui.feed import Controls
from fwtop.ui.state.rules import MachineRules

SHOWN_SECONDS = 2.0
HIDDEN_SECONDS = 30.0
FIRST_SECONDS = 3.0  # until the first time while hidden: numbers, and an attack's name, come first


class MachineRulesWatch:
    """Keeps `rules` up to date; independent of the screen.

    `start` begins a request; `told` gets an alarm's words; `changed` is called after a reading.
    """

    def __init__(
        self,
        controls: Controls,
        *,
        start: Begin,
        told: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self.rules = MachineRules()
        self._controls = controls
        self._start = start
        self._told = told
        self._changed = changed
        self._asking = False
        self._asked = time.monotonic() + FIRST_SECONDS - HIDDEN_SECONDS

    def refresh(self, statuses: Sequence[RuleStatus], *, shown: bool) -> None:
        """Ask if that is due; called with every snapshot."""
        now = time.monotonic()
        if self._asking or now - self._asked < (SHOWN_SECONDS if shown else HIDDEN_SECONDS):
            return
        self._asking, self._asked = True, now
        self._start(self._fetch, statuses, group="machine rules")

    async def _fetch(self, statuses: Sequence[RuleStatus]) -> None:
        try:
            found = await self._controls.ruleset()
        except FwtopError:  # the screen reports a lost guardian
            return
        finally:
            self._asking = False
        if found is None:  # not read yet, or there is none
            self._asked = time.monotonic() - HIDDEN_SECONDS
            return
        for change in self.rules.take(found, statuses):
            self._told(words(change))
        self._changed()


def words(change: Change) -> str:
    """Write an alarm for the log."""
    alarm = change.alarm
    if not change.began:
        return f"no longer: {alarm.text}"
    return f"{alarm.text}; {alarm.mend}" if alarm.mend else alarm.text
