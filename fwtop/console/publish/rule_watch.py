"""Alarms of the machine's rules and sets, fwtop's and others': a recorder raises those of the Rules tab."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from fwtop.alarms.message import Alarm
from fwtop.analysis.rule_alarms import Change, RuleAlarms
from fwtop.analysis.rule_rates import RatedRule, RuleRates
from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.text import safe_text
from fwtop.render.observation import rfc3339

_EVERY_SECONDS = 15.0  # what is usual of a rule is known after 12 readings, what is abnormal after 3
_JOIN_SECONDS = 1.0
_TEXT = 390  # characters: an alarm must fit the pipe to its process


class RuleWatch:
    """Reads the rule set now and then, in a thread of its own: a slow guardian delays no observation."""

    def __init__(
        self,
        host: str,
        read: Callable[[], Ruleset | None],
        statuses: Callable[[], Sequence[RuleStatus]],
        tell: Callable[[Alarm], None],
        every_seconds: float = _EVERY_SECONDS,
    ) -> None:
        """`read` returns the last reading and has the next one begun, or raises FwtopError."""
        self._host, self._read, self._statuses, self._tell = host, read, statuses, tell
        self._every_seconds = every_seconds
        self._rates, self._alarms = RuleRates(), RuleAlarms()
        self._rated: tuple[RatedRule, ...] = ()
        self._taken = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rule watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def _watch(self) -> None:
        while not self._stop.wait(self._every_seconds):
            with suppress(FwtopError):  # another alarm tells that the guardian doesn't answer
                for alarm in self._new():
                    self._tell(alarm)

    def _new(self) -> Iterator[Alarm]:
        found = self._read()
        if found is None:
            return
        if found.taken != self._taken:
            self._taken, self._rated = found.taken, self._rates.take(found)
        for change in self._alarms.take(self._rated, found.sets, self._statuses()):
            yield _alarm(self._host, change)


def _alarm(host: str, change: Change) -> Alarm:
    about = change.alarm
    details: dict[str, str | float] = {"alarm_kind": about.kind}
    if not change.began:
        text, event = f"Over: {about.text}", "rules_alarm_over"
    else:
        text, event = about.text, "rules_alarm"
        details["mend"] = safe_text(about.mend, limit=_TEXT)
    subject = safe_text(about.key, limit=_TEXT)
    return Alarm(event, rfc3339(time.time()), host, subject, safe_text(text, limit=_TEXT), details)
