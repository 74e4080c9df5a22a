"""What happened: the log of every event and of what the screen did or refused, and toasts for what is new."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace
from rich.style import Style

from fwtop.analysis.rule_readings import Change
from fwtop.model.harm import ClientLoss
from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event, EventKind, Mark
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.verdict import verdict_of
from fwtop.store.events import EventLog
from fwtop.ui.feed import PlayerState
from fwtop.ui.format import cut, duration
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.layout import Box, Lines
from fwtop.ui.lists.details import subject_details
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.style import (
    ALARM,
    BAD,
    CALM,
    DIM,
    GOOD,
    NOTICE,
    SELECTED,
    TEXT,
    WARN,
    Line,
    fit,
    width_of,
    wrap_line,
)

MOST_ENTRIES = 2_000
_MOST_NOTES = 200  # notes of snapshots that are known already
_AGAIN_SECONDS = 60.0  # the same again within this time is counted, not listed
REFUSED, EXPORTED, NOTE, SETTINGS = "refused", "export written", "notice", "settings"
FAULT = "internal error"
MACHINE = "firewall"  # alarms about any rule or set on the machine

_STYLES: dict[str, Style] = {
    EventKind.ATTACK_BEGAN: BAD,
    EventKind.ATTACK_CHANGED: BAD,
    EventKind.ATTACK_ENDED: GOOD,
    EventKind.RULE_PROPOSED: DIM,
    EventKind.RULE_APPLIED: WARN,
    EventKind.RULE_CONFIRMED: GOOD,
    EventKind.RULE_EXPIRED: WARN,
    EventKind.RULE_HARMS: BAD,
    EventKind.GUARDIAN_LOST: BAD,
    EventKind.GUARDIAN_BACK: GOOD,
    EventKind.RECORDS_LOST: WARN,
    EventKind.NOT_JUDGED: BAD,
    EventKind.JUDGED_AGAIN: GOOD,
    NOTE: WARN,
    SETTINGS: WARN,
    MACHINE: WARN,
    FAULT: BAD,
}
_WORDS: dict[str, str] = {
    EventKind.RULE_APPLIED: "rule installed",
    EventKind.RULE_CONFIRMED: "rule kept",
    EventKind.RULE_UNDONE: "rule removed",
    EventKind.RULE_HARMS: "HARM",
    EventKind.RULE_PROPOSED: "proposals",
}


class SessionLog:
    """The entries, oldest first; of live traffic bounded and counted while unread."""

    def __init__(self) -> None:
        self.unread = 0
        self.entries: deque[LogEntry] = deque(maxlen=MOST_ENTRIES)
        self._events = EventLog()
        self._last: Snapshot | None = None
        self._notes: dict[str, None] = {}  # in order of appearance
        self._number = 0
        self._marks: Sequence[Mark] = ()
        self._times: list[float] = []
        self._recorded: tuple[LogEntry, ...] = ()

    def take(self, snapshot: Snapshot) -> list[LogEntry]:
        """Add the events between the last snapshot and this one, and its new notes; return what was added."""
        at = snapshot.started + snapshot.seconds
        shots = [shot for shot in (snapshot, self._last) if shot is not None]
        found = {} if self._last else {one.rule.id: one.rule.created for one in snapshot.mitigations}
        dated = [
            replace(event, at=min(event.at, found.get(event.subject) or event.at))  # before the screen opened
            for event in self._events.next(snapshot)
        ]
        added = [self._add(_entry(event, shots)) for event in sorted(dated, key=lambda event: event.at)]
        for note in snapshot.notes:
            if note not in self._notes:
                self._notes[note] = None
                added.append(self.note(NOTE, note, at))
        while len(self._notes) > _MOST_NOTES:
            del self._notes[next(iter(self._notes))]
        self._last = snapshot
        return added

    def note(self, kind: str, text: str, at: float) -> LogEntry:
        """Add what the screen did; the same again is counted."""
        said = safe_text(text, limit=400)
        last = self.entries[-1] if self.entries else None
        again = last is not None and (last.kind, last.text) == (kind, said) and at - last.at < _AGAIN_SECONDS
        if last is not None and again:
            self.entries[-1] = replace(last, at=at, count=last.count + 1)
            return self.entries[-1]
        return self._add(LogEntry(0, at, kind, kind, "", said, _STYLES.get(kind, TEXT)))

    def replay(self, marks: Sequence[Mark], now: float) -> list[LogEntry]:
        """Show a recording's events up to a time; return those that are new since the last call."""
        if marks is not self._marks:
            kept = [
                mark
                for before, mark in zip((None, *marks), marks, strict=False)
                if not _goes_on(before.event if before else None, mark.event)
            ]
            self._marks, self._times = marks, [mark.at for mark in kept]
            self._recorded = tuple(
                replace(_entry(mark.event, ()), number=number) for number, mark in enumerate(kept)
            )
        before = len(self.entries)
        until = bisect_right(self._times, now)
        if until != before:
            shown = sorted(self._recorded[:until], key=lambda entry: entry.at)
            self.entries = deque(shown, maxlen=MOST_ENTRIES)
        return list(self._recorded[before:until])

    def _add(self, entry: LogEntry) -> LogEntry:
        if self.entries and _goes_on(self.entries[-1], entry):
            return self.entries[-1]
        self._number += 1
        self.unread += 1
        numbered = replace(entry, number=self._number)
        place = bisect_right(self.entries, entry.at, key=lambda one: one.at)
        if len(self.entries) == MOST_ENTRIES:
            self.entries.popleft()
            place = max(place - 1, 0)
        self.entries.insert(place, numbered)  # the end of an attack is known when it is over
        return numbered


def _goes_on(before: Event | LogEntry | None, event: Event | LogEntry) -> bool:
    """Whether proposals follow proposals: the overview lists them, the log only that there are new ones."""
    return before is not None and before.kind == event.kind == EventKind.RULE_PROPOSED


def _entry(event: Event, shots: Iterable[Snapshot]) -> LogEntry:
    """Make an entry of an event; the attack or the rule is described as it was in these snapshots."""
    kind = event.kind
    details = tuple(subject_details(event, shots))
    style = _STYLES.get(kind, TEXT)
    words = _WORDS.get(kind, kind.replace("_", " "))
    proposes = kind is EventKind.RULE_PROPOSED
    subject, said = ("", "new ones: the Overview lists them") if proposes else (event.subject, event.text)
    return LogEntry(0, event.at, kind, words, subject, said, style, details=details, incident=event.incident)


_OVERDUE_SECONDS = 1.5  # this long after its confirmation time a rule is over, whatever a snapshot says


class ExpiryWatch(Struct):
    """Notices rules that ended; `expired`, not confirmed in time or ended for harm, stays until a key."""

    expired: RuleStatus | None = None
    loss: ClientLoss | None = None  # what clients lost to it, if it ended for that
    at: float = 0.0  # Unix seconds
    last: RuleStatus | None = None  # the rule that was removed or expired last
    _active: dict[str, RuleStatus] = field(default_factory=dict)
    _harms: dict[str, ClientLoss] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)  # as the operator knows

    def forget(self, rule_id: str) -> None:
        """Expect a rule to end: the operator removed it."""
        self._ended.add(rule_id)
        self._active.pop(rule_id, None)

    def has_ended(self, rule_id: str) -> bool:
        """Whether the operator knows that a rule ended: removed here, or told by the alarm."""
        return rule_id in self._ended

    def update(
        self, mitigations: Sequence[RuleStatus], now: float, losses: Iterable[ClientLoss] = ()
    ) -> None:
        """Compare with the active rules seen before."""
        self._harms |= {loss.rule: loss for loss in losses if loss.is_harm}
        present = {status.rule.id: status for status in mitigations if status.rule.id not in self._ended}
        active = {rule_id: status for rule_id, status in present.items() if status.state in ACTIVE_STATES}
        for rule_id, before in self._active.items():
            after = active.get(rule_id)
            deadline = before.confirm_by if before.state is State.PROVISIONAL else None
            confirmed = after is not None and after.state is State.CONFIRMED
            overdue = deadline is not None and not confirmed and now > deadline + _OVERDUE_SECONDS
            if after is not None and not overdue:
                continue
            active.pop(rule_id, None)
            self.last = before
            if before.state is State.PROVISIONAL:
                self._ended.add(rule_id)
            undone = rule_id in present and present[rule_id].note.startswith("undone")
            loss = self._harms.pop(rule_id, None) if deadline is not None else None
            if deadline is not None and (loss or (not undone and now >= deadline - _OVERDUE_SECONDS)):
                self.expired, self.loss, self.at = before, loss, min(deadline, now)
        self._active = active


TOAST_SECONDS = 8.0
MOST_TOASTS = 3
_LINES = 2  # of one toast
WIDEST_TOAST = 64
_REVERSED = {BAD: ALARM, GOOD: CALM, WARN: NOTICE}


class Toast(Struct, frozen=True):
    """One line of it."""

    key: str  # a newer one of the same key takes its place
    text: str
    style: Style
    until: float
    count: int = 1


class ToastQueue(Struct):
    """The toasts that are shown, the newest last."""

    _toasts: list[Toast] = field(default_factory=list)

    def add(self, key: str, text: str, style: Style, now: float) -> None:
        """Show something; the same key replaces and counts."""
        held = next((toast for toast in self.current(now) if toast.key == key), None)
        toast = Toast(key, text, _REVERSED.get(style, SELECTED), now + TOAST_SECONDS)
        if held is not None:
            self._toasts.remove(held)
            toast = replace(toast, count=held.count + 1)
        self._toasts = [*self._toasts, toast][-MOST_TOASTS:]

    def current(self, now: float) -> Sequence[Toast]:
        """Return those that are still to be shown."""
        self._toasts = [toast for toast in self._toasts if 0 <= toast.until - now <= TOAST_SECONDS]
        return self._toasts

    def clear(self) -> None:
        """Show nothing any more."""
        self._toasts = []


def expiry_lines(
    expiry: ExpiryWatch, now: float, verdict: str, width: int, *, lost: bool = False
) -> list[Line]:
    """Write that a trial ended unconfirmed, or for harm: it stays until a key is pressed.

    `lost`: there is no guardian that could install it again.

    Where room is short the reason gives way, which badge or log show too, never the key that helps.
    """
    rule = expiry.expired.rule.id if expiry.expired is not None else ""
    what = f"✖ Rule {rule} expired {duration(now - expiry.at)} ago"
    key = "Quit and start fwtop again" if lost else "Enter previews it again"
    if expiry.loss is not None:
        what, verdict = f"✖ Rule {rule} was taken back", f"with it {expiry.loss.words}"
        key = f"{KEY_MAP.label('redo')} previews it again"  # Enter goes on to what did no harm
    told = f"{what}, {verdict}."
    for rows in ([f"{told} {key}"], [told, key], [f"{what},", f"{verdict}.", key], [f"{what}. {key}"]):
        widest = max(map(len, rows))
        if widest + 2 <= width:
            break
    return [[(f" {row:{widest}} ", ALARM)] for row in rows]


def toast_lines(toasts: Sequence[Toast], width: int, alarm: Sequence[Line] = ()) -> list[Line]:
    """Draw the toasts, the newest last, in MOST_TOASTS lines; the alarm first. What is too long is broken."""
    lines = list(alarm)
    below: list[Line] = []
    for toast in reversed(toasts):
        times = f" ×{toast.count}" if toast.count > 1 else ""
        room = max(width - 2, 1)
        rows = wrap_line([(f"{toast.text}{times}", toast.style)], room)
        if len(rows) > _LINES:
            rows = [*rows[: _LINES - 1], [(cut(f"{rows[_LINES - 1][0][0]}…", room), toast.style)]]
        widest = max(map(width_of, rows), default=0)
        edge = (" ", toast.style)
        block = [[edge, *row, (" " * (widest - width_of(row)), toast.style), edge] for row in rows]
        if len(lines) + len(block) + len(below) > MOST_TOASTS:
            break
        below = [*block, *below]
    return [fit(line, min(width_of(line), width)) for line in (*lines, *below)]


class Toasts(Lines):
    """Shows toasts, one below the other; takes no more room than they need."""

    def __init__(self) -> None:
        super().__init__("toasts")

    def write(self, lines: Sequence[Line], left: int, top: int) -> None:
        """Draw these lines from there on; without any, hide."""
        widest = max(map(width_of, lines), default=0)
        if not widest:
            self.place(None)
            return
        self.place(Box(left, top, widest, len(lines)))
        self.show(lines)


_TOASTED = frozenset(EventKind) - {EventKind.RULE_PROPOSED, EventKind.BASELINE_CHANGED}
_ENDS = {EventKind.RULE_UNDONE, EventKind.RULE_EXPIRED}
_RULES = {EventKind.RULE_APPLIED, EventKind.RULE_CONFIRMED, *_ENDS}
_PASSED_SECONDS = 2.0  # of wall clock: an event that a recording passed longer ago was jumped over


class News:
    """Feeds log and toasts. Toasts go by the wall clock, the log by that of the traffic."""

    def __init__(
        self, log: SessionLog, clock: Callable[[], float], expiry: ExpiryWatch, installed: Mapping[str, str]
    ) -> None:
        self.log = log
        self._toasts = ToastQueue()
        self._clock = clock
        self._expiry = expiry
        self._installed = installed  # by this screen: id → summary
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
            self.log.unread = 0
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

    def lines(self, snapshot: Snapshot, width: int) -> list[Line]:
        """Return the toasts of now; first of all the trial that ended unconfirmed, until a key is pressed."""
        expiry, now = self._expiry, self._clock()
        alarm: list[Line] = []
        if expiry.expired is not None:
            verdict, lost = verdict_of(snapshot, now).badge, snapshot.guardian.startswith("lost")
            alarm = expiry_lines(expiry, now, verdict, width, lost=lost)
        return toast_lines(self._toasts.current(now), width, alarm)

    def _is_known(self, entry: LogEntry) -> bool:
        """Whether the operator knows already: it was done here, or the alarm says it."""
        if entry.kind not in _RULES:
            return False
        mine = entry.subject in self._installed
        return self._expiry.has_ended(entry.subject) or (mine and entry.kind not in _ENDS)


def _words(entry: LogEntry) -> str:
    name = f" {entry.subject}" if entry.kind.startswith("rule") else ""
    return entry.text if entry.text.startswith(entry.words) else f"{entry.words}{name}: {entry.text}"
