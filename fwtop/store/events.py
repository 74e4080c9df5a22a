"""Events of a session, derived by comparing successive snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fwtop.model.harm import ClientLoss
from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event, EventKind
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.numbers import percent, span_words
from fwtop.render.rows.defence import holding, kernel_words

_EXPIRY_SLACK_SECONDS = 3.0  # between a kernel timeout and the tick that no longer shows the rule
_LOST_EVENT_SECONDS = 60.0
_MAX_SEEN = 1_000
_ENDS = {State.REVERTED: EventKind.RULE_UNDONE, State.EXPIRED: EventKind.RULE_EXPIRED}


def derive(before: Snapshot | None, after: Snapshot) -> list[Event]:
    """Return the events between two snapshots of a session; None: `after` is the first."""
    at = after.at
    return [
        *_attack_events(before.judgement.harmful if before else (), after.judgement.harmful, at),
        *_harm_events(before, after, at),
        *_rule_events(before, after, at),
        *_proposal_events(before, after, at),
        *_guardian_events(before.guardian if before else "", after.guardian, at),
        *_loss_events(before, after, at),
        *_learning_events(before.judgement.learning if before else "", after.judgement.learning, at),
        *_judging_events(before.judgement.not_judged if before else "", after.judgement.not_judged, at),
    ]


class EventLog:
    """Derives the events of a running session, without repetitions.

    Each proposal is reported once, lost records at most once a minute; memory is bounded.
    """

    def __init__(self) -> None:
        self._last: Snapshot | None = None
        self._proposed: set[str] = set()
        self._lost_reported = float("-inf")

    def next(self, snapshot: Snapshot) -> list[Event]:
        """Return the new events of a snapshot."""
        events = [event for event in derive(self._last, snapshot) if self._is_new(event)]
        self._last = snapshot
        return events

    def _is_new(self, event: Event) -> bool:
        if event.kind is EventKind.RULE_PROPOSED:
            if event.subject in self._proposed or len(self._proposed) >= _MAX_SEEN:
                return False
            self._proposed.add(event.subject)
        if event.kind is EventKind.RECORDS_LOST:
            if event.at - self._lost_reported < _LOST_EVENT_SECONDS:
                return False
            self._lost_reported = event.at
        return True


def _attack_events(before: tuple[Incident, ...], after: tuple[Incident, ...], at: float) -> Iterator[Event]:
    old = {attack.id: attack for attack in before}
    new = {attack.id: attack for attack in after}
    for number, attack in new.items():
        if number not in old:
            text = _beginning(attack, after)
            yield _event(min(at, attack.since), EventKind.ATTACK_BEGAN, attack.kind, text, number)
    for number, attack in {**old, **new}.items():
        was_over = number in old and old[number].ended is not None
        ended = attack.ended if number in new else attack.last or at
        if ended is not None and not was_over:
            peak = f"at most {attack.peak_pps:,.0f} packets a second" if attack.peak_pps >= 1 else ""
            size = holding(replace(attack, ended=ended)) or peak
            lasted = span_words(ended - attack.since, after=" after ", once=", seen once")
            text = ", ".join(filter(None, (f"{attack.title}{lasted}", size)))
            yield _event(ended, EventKind.ATTACK_ENDED, attack.kind, text, number)
    was, now = _causes(before), _causes(after)
    if was and now and {one.title for one in was} != {one.title for one in now}:
        text = f"from {', '.join(one.title for one in was)} to {', '.join(one.title for one in now)}"
        yield _event(at, EventKind.ATTACK_CHANGED, now[0].kind, text, now[0].id)


def _beginning(attack: Incident, attacks: tuple[Incident, ...]) -> str:
    """Describe an attack by its packets; what it fills, by its cause."""
    cause = next((one.title for one in attacks if one.id == attack.cause), "")
    if cause:
        return f"{attack.title}, an effect of {cause}"
    share = f"{percent(attack.share)} of packets, " if attack.share > 0 else ""
    size = holding(attack) or f"{share}{attack.pps:,.0f} packets a second"
    return "; ".join(filter(None, (f"{attack.title}: {size}", kernel_words(attack))))


def _causes(attacks: tuple[Incident, ...]) -> list[Incident]:
    """Return the attacks without their effects: a full connection table is not a vector of its own."""
    return [attack for attack in attacks if not attack.effect_of and attack.is_on]


def _harm_events(before: Snapshot | None, after: Snapshot, at: float) -> Iterator[Event]:
    known = _harms(before)
    for rule, loss in _harms(after).items():
        if rule not in known:
            yield _event(at, EventKind.RULE_HARMS, rule, f"{loss.words} since it is in")


def _harms(snapshot: Snapshot | None) -> dict[str, ClientLoss]:
    return {loss.rule: loss for loss in snapshot.losses if loss.is_harm} if snapshot else {}


def _rule_events(before: Snapshot | None, after: Snapshot, at: float) -> Iterator[Event]:
    old = {status.rule.id: status for status in before.mitigations} if before else {}
    new = {status.rule.id: status for status in after.mitigations}
    losses = _harms(before)
    for rule_id, status in new.items():
        yield from _state_events(old.get(rule_id), status, at, first=before is None)
    for rule_id, status in old.items():
        if rule_id not in new and status.state in ACTIVE_STATES:
            yield _vanished(status, at, losses.get(rule_id))


def _state_events(old: RuleStatus | None, new: RuleStatus, at: float, *, first: bool) -> Iterator[Event]:
    rule = new.rule
    was = old.state if old else State.INTENT
    if was == new.state:
        return
    if was not in ACTIVE_STATES and new.state in ACTIVE_STATES:
        text = f"{rule.summary} (active since before the session)" if first else rule.summary
        yield _event(at, EventKind.RULE_APPLIED, rule.id, text)
    if new.state is State.CONFIRMED:
        yield _event(at, EventKind.RULE_CONFIRMED, rule.id, rule.summary)
    # Only rules seen active: others ended before the session, or before the first snapshot with them.
    if new.state in _ENDS and was in ACTIVE_STATES:
        text = f"{rule.summary}: {new.note}" if new.note else rule.summary
        yield _event(at, _ENDS[new.state], rule.id, text)


def _vanished(status: RuleStatus, at: float, loss: ClientLoss | None) -> Event:
    """Return why an active rule is no longer listed: the guardian lists active rules only."""
    summary, late = status.rule.summary, at + _EXPIRY_SLACK_SECONDS
    if loss is not None:
        return _event(at, EventKind.RULE_UNDONE, status.rule.id, f"{summary}: it did harm, {loss.words}")
    if status.state is State.PROVISIONAL and status.confirm_by is not None and late >= status.confirm_by:
        return _event(at, EventKind.RULE_EXPIRED, status.rule.id, f"{summary}: not confirmed in time")
    if status.expires is not None and late >= status.expires:
        return _event(at, EventKind.RULE_EXPIRED, status.rule.id, summary)
    return _event(at, EventKind.RULE_UNDONE, status.rule.id, summary)


def _proposal_events(before: Snapshot | None, after: Snapshot, at: float) -> Iterator[Event]:
    old = {proposal.fwtop or proposal.summary for proposal in before.judgement.proposals} if before else set()
    for proposal in after.judgement.proposals:
        subject = proposal.fwtop or proposal.summary
        if subject in old:
            continue
        clients = f"; {proposal.clients.words}" if proposal.clients and proposal.clients.known else ""
        text = (
            f"{proposal.summary}: would stop {percent(proposal.attack_share)} of the attack "
            f"and hit {percent(proposal.collateral_share, 2)} of other traffic{clients}"
        )
        yield _event(at, EventKind.RULE_PROPOSED, subject, text)


def _guardian_events(before: str, after: str, at: float) -> Iterator[Event]:
    was_lost, is_lost = before.startswith("lost"), after.startswith("lost")
    if is_lost and not was_lost:
        yield _event(at, EventKind.GUARDIAN_LOST, "guardian", f"guardian {after}")
    if was_lost and not is_lost:
        yield _event(at, EventKind.GUARDIAN_BACK, "guardian", "the guardian answers again")


def _learning_events(before: str, after: str, at: float) -> Iterator[Event]:
    if after and after != before:
        yield _event(at, EventKind.BASELINE_CHANGED, "baseline", after)


def _loss_events(before: Snapshot | None, after: Snapshot, at: float) -> Iterator[Event]:
    lost = after.tables.sampling.lost
    if lost and not (before and before.tables.sampling.lost):
        text = f"{lost:,} samples did not fit the buffers; totals are exact, shares less so"
        yield _event(at, EventKind.RECORDS_LOST, "records", text)


def _judging_events(before: str, after: str, at: float) -> Iterator[Event]:
    if after and not before:
        yield _event(at, EventKind.NOT_JUDGED, "judging", after)
    if before and not after:
        yield _event(at, EventKind.JUDGED_AGAIN, "judging", "the traffic is judged again")


def _event(at: float, kind: EventKind, subject: str, text: str, incident: int = 0) -> Event:
    return Event(at, kind, safe_text(subject), safe_text(text, limit=400), incident)
