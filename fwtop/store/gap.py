"""What happened while nothing could be stored: held in memory, bounded, and stored when that works again."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.session import AttackEvidence, Event, EventKind
from fwtop.model.traffic.snapshot import Snapshot

_MOST_EVENTS = 1_000
_MOST_ATTACKS = 8  # whose strongest snapshot is held: some hundred KiB each
_MOST_RULES = 256
_MOST_EVIDENCE = 16
_BEGINNINGS = (EventKind.ATTACK_BEGAN, EventKind.RULE_APPLIED)


class Held(Struct, frozen=True):
    """A snapshot of the gap, and the seconds it speaks for."""

    snapshot: Snapshot
    seconds: float


class Gap(Struct):
    """The time since the last snapshot that was stored.

    Of each attack the snapshot is held in which it was strongest, of each rule what was last known of it: so
    those that began and ended meanwhile are in the report, too.
    """

    since: float  # Unix seconds: the end of the last stored snapshot
    until: float = 0.0  # the end of the last one that was not
    missed: int = 0
    cause: str = ""
    events: list[Event] = field(default_factory=list)
    rules: dict[str, tuple[float, RuleStatus]] = field(default_factory=dict)
    evidence: dict[str, AttackEvidence] = field(default_factory=dict)
    last: Held | None = None
    _strongest: dict[str, tuple[float, Held]] = field(default_factory=dict)

    def miss(
        self, snapshot: Snapshot, events: Iterable[Event], evidence: Iterable[AttackEvidence], cause: str
    ) -> None:
        """Add a snapshot that was not stored, and what was new in it."""
        end = snapshot.at
        held = Held(snapshot, max(end - max(self.since, self.until), 1e-3))
        self.until, self.missed, self.cause = end, self.missed + 1, cause
        self.last = held
        self.events = _bounded([*self.events, *events])
        for attack in snapshot.judgement.attacks:
            before = self._strongest.get(attack.kind)
            if before is None and len(self._strongest) >= _MOST_ATTACKS:
                continue
            if before is None or attack.pps > before[0]:
                self._strongest[attack.kind] = attack.pps, held
        for status in snapshot.mitigations:
            self.rules.pop(status.rule.id, None)
            self.rules[status.rule.id] = end, status
        while len(self.rules) > _MOST_RULES:
            del self.rules[next(iter(self.rules))]
        for item in evidence:
            before_it = self.evidence.get(item.kind)
            if before_it is None and len(self.evidence) >= _MOST_EVIDENCE:
                continue
            if before_it is None or item.pps > before_it.pps:
                self.evidence[item.kind] = item

    def take_last(self) -> Snapshot | None:
        """Return the last snapshot as one that will be stored after all."""
        if self.last is None:
            return None
        held, self.last = self.last, None
        end, self.missed = self.until, self.missed - 1
        self.until -= held.seconds
        self._strongest = {kind: best for kind, best in self._strongest.items() if best[1] is not held}
        self.rules = {number: known for number, known in self.rules.items() if known[0] < end}
        return held.snapshot

    def held(self) -> list[Held]:
        """Return the snapshots that are to be stored, oldest first."""
        found = {held.snapshot.at: held for _, held in self._strongest.values()}
        return [found[at] for at in sorted(found)]

    def told(self) -> tuple[Event, ...]:
        """Return the events that stand for the gap in the session, around those in it."""
        if not self.missed:
            return tuple(self.events)
        count = f"{self.missed:,} snapshot{'s' if self.missed > 1 else ''}"
        stopped = Event(self.since, EventKind.STORING_STOPPED, "storing", self.cause)
        resumed = f"{count} could not be stored: {self.cause}"
        return stopped, *self.events, Event(self.until, EventKind.STORING_RESUMED, "storing", resumed)


def _bounded(events: list[Event]) -> list[Event]:
    """Return at most so many: without proposals first, then of each attack and rule its beginning and end."""
    if len(events) > _MOST_EVENTS:
        events = [event for event in events if event.kind is not EventKind.RULE_PROPOSED]
    if len(events) > _MOST_EVENTS:
        first = {event.subject: event for event in reversed(events) if event.kind in _BEGINNINGS}
        last = {event.subject: event for event in events}
        kept = {id(event) for event in (*first.values(), *last.values())}
        events = [event for event in events if id(event) in kept]
    return events[-_MOST_EVENTS:]
