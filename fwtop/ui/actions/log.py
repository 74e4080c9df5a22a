"""The log: every event of the session so far, and what the screen itself did or refused."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from rich.style import Style

from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event, EventKind, Mark
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.store.events import EventLog
from fwtop.ui.lists.details import subject_details
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.style import BAD, DIM, GOOD, TEXT, WARN

MOST_ENTRIES = 2_000
_MOST_NOTES = 200  # notes of snapshots that are known already
_AGAIN_SECONDS = 60.0  # the same again within this time is counted, not listed
REFUSED, EXPORTED, NOTICE, SETTINGS = "refused", "export written", "notice", "settings"
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
    EventKind.GUARDIAN_LOST: BAD,
    EventKind.GUARDIAN_BACK: GOOD,
    EventKind.RECORDS_LOST: WARN,
    EventKind.NOT_JUDGED: BAD,
    EventKind.JUDGED_AGAIN: GOOD,
    EXPORTED: GOOD,
    NOTICE: WARN,
    SETTINGS: WARN,
    MACHINE: WARN,
    FAULT: BAD,
}
_WORDS: dict[str, str] = {
    EventKind.RULE_APPLIED: "rule installed",
    EventKind.RULE_CONFIRMED: "rule kept",
    EventKind.RULE_UNDONE: "rule removed",
}


class SessionLog:
    """The entries, oldest first; of live traffic bounded and counted while unread."""

    def __init__(self) -> None:
        self.unread = 0
        self._entries: deque[LogEntry] = deque(maxlen=MOST_ENTRIES)
        self._events = EventLog()
        self._last: Snapshot | None = None
        self._notes: dict[str, None] = {}  # in order of appearance
        self._number = 0
        self._proposed = 0  # rules, in the last entry
        self._marks: Sequence[Mark] = ()
        self._times: list[float] = []
        self._recorded: tuple[LogEntry, ...] = ()

    @property
    def entries(self) -> Sequence[LogEntry]:
        """Return all entries."""
        return self._entries

    def take(self, snapshot: Snapshot) -> list[LogEntry]:
        """Add the events between the last snapshot and this one, and its new notes; return what was added."""
        at = snapshot.started + snapshot.seconds
        shots = [shot for shot in (snapshot, self._last) if shot is not None]
        events = sorted(self._events.next(snapshot), key=lambda event: event.at)
        proposed = sum(event.kind is EventKind.RULE_PROPOSED for event in events)
        added = [
            self._add(_entry(event, shots)) for event in events if event.kind is not EventKind.RULE_PROPOSED
        ]
        if proposed:
            self._count_proposals(proposed, at)
        for note in snapshot.notes:
            if note not in self._notes:
                self._notes[note] = None
                added.append(self.note(NOTICE, note, at))
        while len(self._notes) > _MOST_NOTES:
            del self._notes[next(iter(self._notes))]
        self._last = snapshot
        return added

    def _count_proposals(self, count: int, at: float) -> None:
        """Sum proposals up: a flood brings a dozen, and the overview lists them."""
        last = self._entries[-1] if self._entries else None
        if last is not None and last.kind == EventKind.RULE_PROPOSED:
            count += self._proposed
            self._entries.pop()
            self.unread = max(self.unread - 1, 0)
        self._proposed = count
        words = "1 rule proposed" if count == 1 else f"{count} rules proposed"
        style = _STYLES[EventKind.RULE_PROPOSED]
        kind = EventKind.RULE_PROPOSED
        self._add(LogEntry(0, at, kind, "rule proposed", "", f"{words}: the Overview lists them", style))

    def note(self, kind: str, text: str, at: float) -> LogEntry:
        """Add what the screen did; the same again is counted."""
        said = safe_text(text, limit=400)
        last = self._entries[-1] if self._entries else None
        again = last is not None and (last.kind, last.text) == (kind, said) and at - last.at < _AGAIN_SECONDS
        if last is not None and again:
            self._entries[-1] = replace(last, at=at, count=last.count + 1)
            return self._entries[-1]
        return self._add(LogEntry(0, at, kind, kind, "", said, _STYLES.get(kind, TEXT)))

    def replay(self, marks: Sequence[Mark], now: float) -> list[LogEntry]:
        """Show a recording's events up to a time; return those that are new since the last call."""
        if marks is not self._marks:
            self._marks, self._times = marks, [mark.at for mark in marks]
            self._recorded = tuple(
                replace(_entry(mark.event, ()), number=number) for number, mark in enumerate(marks)
            )
        before = len(self._entries)
        until = bisect_right(self._times, now)
        if until != before:
            self._entries = deque(self._recorded[:until], maxlen=MOST_ENTRIES)
        return list(self._recorded[before:until])

    def seen(self) -> None:
        """Take all entries as read."""
        self.unread = 0

    def _add(self, entry: LogEntry) -> LogEntry:
        self._number += 1
        self.unread += 1
        numbered = replace(entry, number=self._number)
        self._entries.append(numbered)
        return numbered


def _entry(event: Event, shots: Iterable[Snapshot]) -> LogEntry:
    """Make an entry of an event; the attack or the rule is described as it was in these snapshots."""
    kind = event.kind
    details = subject_details(event.subject, shots)
    style = _STYLES.get(kind, TEXT)
    words = _WORDS.get(kind, kind.replace("_", " "))
    return LogEntry(0, event.at, kind, words, event.subject, event.text, style, details=tuple(details))
