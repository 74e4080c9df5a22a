"""What happened: the log of it, and toasts for what is new."""

from __future__ import annotations

from fwtop.analysis.rule_readings import Change
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.log import MACHINE
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.feed import PlayerState
from fwtop.ui.lists.history import verdict_of
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.style import Line
from fwtop.ui.toasts import ToastQueue, expiry_line, toast_lines

_TOASTED = frozenset(EventKind) - {EventKind.RULE_PROPOSED}
_RULES = {EventKind.RULE_APPLIED, EventKind.RULE_CONFIRMED, EventKind.RULE_UNDONE}
_PASSED_SECONDS = 2.0  # of wall clock: an event that a recording passed longer ago was jumped over


class News:
    """Feeds log and toasts. Toasts go by the wall clock, the log by that of the traffic."""

    def __init__(self, desk: Desk, rules: RuleActions) -> None:
        self.log = desk.log
        self._toasts = ToastQueue()
        self._rules = rules
        self._clock = desk.clock
        self._began = False  # what a screen finds when it opens is no news
        self._before = 0.0

    def take(self, snapshot: Snapshot, state: PlayerState | None) -> None:
        """Note what a snapshot brings; `state` is that of a recording's player."""
        now = snapshot.started + snapshot.seconds
        if state is None:
            added = self.log.take(snapshot)
        else:
            at = state.ends if state.whole else now
            added = self.log.replay(state.marks, at)
            played = state.playing and 0 < now - self._before <= _PASSED_SECONDS * max(state.speed, 1.0)
            added = added if played else []
            self.log.seen()
        if now < self._before or (state is not None and state.whole):
            self._toasts.clear()  # a recording went back: that hasn't happened yet
        for entry in added if self._began else []:
            if entry.kind in _TOASTED and not self._is_known(entry):
                self._toasts.add(f"{entry.kind} {entry.subject}", _words(entry), entry.style, self._clock())
        self._began, self._before = True, now

    def alarm(self, change: Change, at: float) -> None:
        """Note an alarm about the machine's rules, which the operator should see at once."""
        alarm = change.alarm
        mended = f"{alarm.text}; {alarm.mend}" if alarm.mend else alarm.text
        entry = self.log.note(MACHINE, mended if change.began else f"no longer: {alarm.text}", at)
        self._toasts.add(MACHINE, _words(entry), entry.style, self._clock())

    def lines(self, snapshot: Snapshot | None, width: int) -> list[Line]:
        """Return the toasts of now; first of all the trial that ended unconfirmed, until a key is pressed."""
        expiry, now = self._rules.expiry, self._clock()
        alarm = None
        if expiry.expired is not None and snapshot is not None:
            verdict = verdict_of(snapshot, now).badge
            alarm = expiry_line(expiry.expired, expiry.at, now, verdict, width)
        return toast_lines(self._toasts.current(now), width, alarm)

    def _is_known(self, entry: LogEntry) -> bool:
        """Whether the operator knows already: it was done here, or the alarm says it."""
        if entry.kind not in _RULES:
            return False
        mine = entry.subject in self._rules.installed_rules
        return self._rules.expiry.has_ended(entry.subject) or (mine and entry.kind != EventKind.RULE_UNDONE)


def _words(entry: LogEntry) -> str:
    name = f" {entry.subject}" if entry.kind.startswith("rule") else ""
    return entry.text if entry.text.startswith(entry.words) else f"{entry.words}{name}: {entry.text}"
