"""Events derived from successive snapshots."""

from __future__ import annotations

from msgspec.structs import replace
from stored_samples import POISON, START, attack, poisoned, rule, session_ticks, snapshot, status

from fwtop.model.rule import State
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.store.events import EventLog, derive


def kinds(before: Snapshot | None, after: Snapshot) -> list[EventKind]:
    return [event.kind for event in derive(before, after)]


def quiet(at: float, **changes: object) -> Snapshot:
    calm = snapshot(at, busy=False)
    sampling = replace(calm.tables.sampling, lost=0)
    calm = replace(calm, tables=replace(calm.tables, sampling=sampling))
    return replace(calm, **changes)  # type: ignore[arg-type]


def test_nothing_happens_between_equal_snapshots() -> None:
    for busy in session_ticks(40)[20:40:10]:
        assert derive(busy, busy) == []


def test_an_attack_begins_changes_and_ends() -> None:
    dns, syn = attack(), replace(attack("syn_flood"), title="SYN flood")

    def with_attacks(*attacks: object) -> Snapshot:
        calm = quiet(START)
        return replace(calm, judgement=replace(calm.judgement, attacks=attacks))  # type: ignore[arg-type]

    assert kinds(with_attacks(), with_attacks(dns)) == [EventKind.ATTACK_BEGAN]
    assert kinds(with_attacks(dns), with_attacks(dns, syn)) == [
        EventKind.ATTACK_BEGAN,
        EventKind.ATTACK_CHANGED,
    ]
    table = replace(attack("conntrack_exhaustion"), effect_of="syn_flood tcp/80", cause=syn.id)
    [filled] = derive(with_attacks(syn), with_attacks(syn, table))
    assert filled.text.endswith(", an effect of SYN flood")
    changed = derive(with_attacks(dns), with_attacks(syn))
    assert [event.kind for event in changed] == [
        EventKind.ATTACK_BEGAN,
        EventKind.ATTACK_ENDED,
        EventKind.ATTACK_CHANGED,
    ]
    assert changed[-1].text == "from DNS amplification to SYN flood"
    assert kinds(with_attacks(dns), with_attacks()) == [EventKind.ATTACK_ENDED]
    for lasted, words in ((0.0, ", seen once"), (0.2, " after less than a second"), (20.0, " after 20 s")):
        [ended] = derive(with_attacks(syn), with_attacks(replace(syn, ended=syn.since + lasted)))
        assert ended.text == f"SYN flood{words}"


def test_events_of_a_rule() -> None:
    at = START + 40
    provisional = quiet(at, mitigations=(status(rule(), at, state=State.PROVISIONAL),))
    confirmed = quiet(at + 1, mitigations=(status(rule(), at, state=State.CONFIRMED),))
    reverted = quiet(at + 2, mitigations=(status(rule(), at, state=State.REVERTED),))
    expired = quiet(at + 2, mitigations=(status(rule(), at, state=State.EXPIRED),))
    assert kinds(quiet(at), provisional) == [EventKind.RULE_APPLIED]
    assert kinds(quiet(at), confirmed) == [EventKind.RULE_APPLIED, EventKind.RULE_CONFIRMED]
    assert kinds(provisional, confirmed) == [EventKind.RULE_CONFIRMED]
    assert kinds(confirmed, reverted) == [EventKind.RULE_UNDONE]
    assert kinds(confirmed, expired) == [EventKind.RULE_EXPIRED]
    assert kinds(reverted, quiet(at + 3)) == []
    assert kinds(None, reverted) == []


def test_a_rule_that_is_no_longer_listed() -> None:
    of = rule()
    confirmed = status(of, START + 40)
    before = quiet(START + 40, mitigations=(confirmed,))
    assert kinds(before, quiet(START + 41)) == [EventKind.RULE_UNDONE]
    assert kinds(before, quiet(of.created + of.ttl_seconds)) == [EventKind.RULE_EXPIRED]
    waiting = replace(confirmed, state=State.PROVISIONAL, confirm_by=START + 60)
    left = derive(quiet(START + 59, mitigations=(waiting,)), quiet(START + 60))
    assert [event.kind for event in left] == [EventKind.RULE_EXPIRED]
    assert "not confirmed in time" in left[0].text


def test_a_rule_older_than_the_session_is_marked() -> None:
    found = derive(None, quiet(START, mitigations=(status(rule(), START),)))
    assert [event.kind for event in found] == [EventKind.RULE_APPLIED, EventKind.RULE_CONFIRMED]
    assert "since before the session" in found[0].text


def test_the_guardian_and_lost_records() -> None:
    ready, lost = quiet(START), quiet(START + 1, guardian="lost: the connection closed")
    assert kinds(ready, lost) == [EventKind.GUARDIAN_LOST]
    assert kinds(lost, ready) == [EventKind.GUARDIAN_BACK]
    assert kinds(ready, snapshot(START + 1, busy=False)) == [EventKind.RECORDS_LOST]


def test_flapping_proposals_and_steady_losses_are_reported_once() -> None:
    log, told = EventLog(), []
    for second in range(50):
        with_it = second % 2 == 0
        tick = snapshot(START + second, busy=False, proposals=with_it)
        sampling = replace(tick.tables.sampling, lost=5 if with_it else 0)
        tick = replace(tick, tables=replace(tick.tables, sampling=sampling))
        told += [event.kind for event in log.next(tick)]
    assert sorted(told) == [EventKind.RECORDS_LOST, EventKind.RULE_PROPOSED]


def test_events_are_sanitised() -> None:
    events = derive(None, poisoned(START))
    assert len(events) >= 4
    for event in events:
        assert "\x1b" not in event.text + event.subject
        assert "\u202e" not in event.text + event.subject
        assert "\n" not in event.text + event.subject
    assert any(POISON[:20] in event.text for event in events)


def test_events_of_the_sample_session() -> None:
    log, told = EventLog(), []
    for tick in session_ticks():
        told += log.next(tick)
    story = [event.kind for event in told if event.kind is not EventKind.RECORDS_LOST]
    assert story == [
        EventKind.ATTACK_BEGAN,
        EventKind.RULE_PROPOSED,
        EventKind.RULE_APPLIED,
        EventKind.RULE_CONFIRMED,
        EventKind.ATTACK_ENDED,
        EventKind.RULE_UNDONE,
    ]


def test_what_changes_the_baseline_is_an_event_once() -> None:
    said = "normal: udp 3,000/s from 12:01:07Z on"
    taught = quiet(START)
    taught = replace(taught, judgement=replace(taught.judgement, learning=said))
    events = derive(quiet(START), taught)
    assert [(event.kind, event.text) for event in events] == [(EventKind.BASELINE_CHANGED, said)]
    assert derive(taught, taught) == []
