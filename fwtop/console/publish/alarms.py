"""Which alarms a recording raises, of traffic, itself and the machine's rules, and handing them on.

What lasts is told once, what flickers isn't told at all.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct, field

from fwtop.alarms.message import Alarm, AlarmConfig
from fwtop.analysis.rule_readings import Change, RatedRule, RuleAlarms, RuleRates
from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event, EventKind
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.numbers import span_words
from fwtop.render.observation import rfc3339
from fwtop.render.rows.defence import holding, kernel_words, taken
from fwtop.store.events import EventLog

_PIPE_BUF = 4096
_MAX_HELD = 128  # things watched at a time; attack kinds are fewer
_RULE_EVENTS = {
    EventKind.RULE_APPLIED: ("rule_installed", "installed"),
    EventKind.RULE_CONFIRMED: ("rule_confirmed", "confirmed"),
    EventKind.RULE_UNDONE: ("rule_removed", "removed"),
    EventKind.RULE_EXPIRED: ("rule_expired", "expired"),
    EventKind.RULE_HARMS: ("rule_harms", "does harm"),
}
_DEGRADED = {
    "guardian": ("the guardian doesn't answer", "the guardian answers again"),
    "samples": ("samples are lost: shares are less exact", "no samples are lost any more"),
    "storing": ("the session is not being stored", "the session is stored again"),
    "judging": ("the traffic is not judged: attacks may go unseen", "the traffic is judged again"),
}


class _Held(Struct):
    """Something that is present or was until recently."""

    seen: float
    lasted: float = 0.0  # seconds, without its pauses
    told: float = 0.0  # when; 0: not yet
    pps: float = 0.0  # as told
    harm: Harm = Harm.UNUSUAL  # as told
    peak: float = 0.0
    last: Incident | None = None  # the attack as last seen


class _Hysteresis(Struct):
    """Tells when a thing has lasted, and when it has been gone for long."""

    began_seconds: float
    ended_seconds: float
    held: dict[str, _Held] = field(default_factory=dict)
    updated: float = 0.0

    def update(self, present: Collection[str], now: float) -> Iterator[tuple[str, str, _Held]]:
        """Yield (began, there or ended, name, state) of what is there now, and of what was."""
        for name in present:
            if name not in self.held and len(self.held) >= _MAX_HELD:
                continue
            state = self.held.setdefault(name, _Held(now))
            if state.seen == self.updated:
                state.lasted += now - state.seen
            state.seen = now
            if state.told:
                yield "there", name, state
            elif state.lasted >= self.began_seconds:
                state.told = now
                yield "began", name, state
        for name, state in list(self.held.items()):
            if now - state.seen >= self.ended_seconds and name not in present:
                del self.held[name]
                if state.told:
                    yield "ended", name, state
        self.updated = now


class AlarmEvents:
    """Compares successive snapshots of a recording."""

    def __init__(self, config: AlarmConfig) -> None:
        self._config = config
        self._attacks = _Hysteresis(config.began_seconds, config.ended_seconds)
        self._troubles = _Hysteresis(config.began_seconds, config.ended_seconds)
        self._log = EventLog()
        self._rules: dict[str, RuleStatus] = {}
        self._is_first = True

    def next(self, snapshot: Snapshot, *, storing: bool = True) -> list[Alarm]:
        """Return the alarms of a snapshot."""
        now = snapshot.at
        events = self._log.next(snapshot)
        self._rules |= {status.rule.id: status for status in snapshot.mitigations}
        found = [*self._attack_alarms(snapshot, now), *self._trouble_alarms(snapshot, now, storing=storing)]
        if not self._is_first:  # a recording that starts again doesn't tell of old rules
            found += [
                self._rule_alarm(event, snapshot.host) for event in events if event.kind in _RULE_EVENTS
            ]
        self._is_first = False
        self._rules = {status.rule.id: status for status in snapshot.mitigations}
        return found

    def _attack_alarms(self, snapshot: Snapshot, now: float) -> Iterator[Alarm]:
        attacks = {str(one.id): one for one in snapshot.judgement.harmful}
        going_on = [number for number, one in attacks.items() if one.ended is None]
        for what, number, state in self._attacks.update(going_on, now):
            attack = attacks.get(number, state.last)
            if attack is None:
                continue
            state.last = attack
            state.peak = max(state.peak, attack.pps)
            if what == "ended":
                yield _ended(snapshot, now, attack, state)
            elif attack.is_on and (what == "began" or self._has_changed(state, attack, now)):
                state.pps, state.told, state.harm = attack.pps, now, attack.severity.harm
                yield _attack_alarm(snapshot, now, what == "began", attack)

    def _has_changed(self, state: _Held, attack: Incident, now: float) -> bool:
        if attack.severity.harm.rank < state.harm.rank:  # abuse that became an attack
            return True
        if now - state.told < self._config.changed_seconds:
            return False
        factor = self._config.changed_factor
        return attack.pps >= factor * state.pps or attack.pps * factor <= state.pps

    def _trouble_alarms(self, snapshot: Snapshot, now: float, *, storing: bool) -> Iterator[Alarm]:
        troubles = {
            "guardian": snapshot.guardian.startswith("lost"),
            "samples": snapshot.tables.sampling.lost > 0,
            "storing": not storing,
            "judging": bool(snapshot.judgement.not_judged),
        }
        present = [name for name, is_there in troubles.items() if is_there]
        for what, name, _ in self._troubles.update(present, now):
            if what != "there":
                event = "watcher_degraded" if what == "began" else "watcher_recovered"
                text = _DEGRADED[name][what == "ended"]
                yield Alarm(event, rfc3339(now), snapshot.host, name, text[0].upper() + text[1:])

    def _rule_alarm(self, event: Event, host: str) -> Alarm:
        name, words = _RULE_EVENTS[event.kind]
        details: dict[str, str | float] = {"rule_id": event.subject}
        if (status := self._rules.get(event.subject)) is not None:
            details |= {"rule_kind": status.rule.kind.value, "packets": status.packets}
        text = safe_text(f"Rule {event.subject} {words}: {event.text}", limit=390)
        return Alarm(name, rfc3339(event.at), host, event.subject, text, details)


def _attack_alarm(snapshot: Snapshot, now: float, is_new: bool, attack: Incident) -> Alarm:
    reaching = attack.pps * attack.reaching_share
    size = f"{attack.pps:,.0f} packets a second, {reaching:,.0f} of them reach services"
    text = f"{attack.title}: {holding(attack) or size}"
    severity = attack.severity
    if part := taken(severity):
        text += f"; {part} taken"
    if part := kernel_words(attack):
        text += f"; {part}"
    details: dict[str, str | float] = {
        "attack_kind": attack.kind,
        "incident": attack.id,
        "class": severity.harm.value,
        **({"exhausts": severity.exhausts.value} if severity.exhausts is not None else {}),
        **({"nearness": round(severity.nearness or 0.0, 3)} if taken(severity) else {}),
        "target": safe_text(attack.target, limit=64),
        "sources": safe_text(attack.sources, limit=64),
        "pps": round(attack.pps),
        "bps": round(attack.bps),
        "reaching_pps": round(reaching),
        "confidence": round(attack.confidence, 3),
        **({"holds": attack.holds, "holds_of": attack.holds_of} if attack.holds else {}),
        "since": rfc3339(attack.since),
    }
    event = "attack_began" if is_new else "attack_changed"
    return Alarm(event, rfc3339(now), snapshot.host, attack.kind, text, details)


def _ended(snapshot: Snapshot, now: float, attack: Incident, state: _Held) -> Alarm:
    lasted = max((attack.ended or attack.last) - attack.since, 0.0)
    size = holding(attack) or f"at most {state.peak:,.0f} packets a second"
    text = f"{attack.title} ended{span_words(lasted, after=' after ', once=', seen once')}, {size}"
    details: dict[str, str | float] = {
        "attack_kind": attack.kind,
        "incident": attack.id,
        "peak_pps": round(state.peak),
        "seconds": round(lasted),
    }
    return Alarm("attack_ended", rfc3339(now), snapshot.host, attack.kind, text, details)


class Alarms:
    """Hands alarms to their process; if that has ended or is stuck, it costs alarms, never time."""

    def __init__(self, descriptor: int, config: AlarmConfig) -> None:
        self._descriptor = descriptor
        self._events = AlarmEvents(config)
        self.problem = ""  # why the last alarm was not delivered; "" if it was

    def take(self, snapshot: Snapshot, *, storing: bool) -> None:
        """Send the alarms of a snapshot."""
        for alarm in self._events.next(snapshot, storing=storing):
            self.send(alarm)

    def send(self, alarm: Alarm) -> None:
        """Write an alarm's line or, if the pipe has no room, nothing: it stays whole (pipe(7), PIPE_BUF)."""
        line = alarm.line()
        try:
            if len(line) > _PIPE_BUF:
                raise OSError(errno.EMSGSIZE, "it is too long")
            os.write(self._descriptor, line)
            self.problem = ""
        except OSError as error:
            self.problem = f"an alarm was not delivered: {error.strerror}"


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
