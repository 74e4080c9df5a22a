"""Rules changed in place: other ports, sources and rates, with their counters, and no packet between the two.

By mechanism, family and variant of iptables; on trial, over a guardian's end, and refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from guardian_bench import PORT, VARIANTS, apply, rules_of, use_variant
from msgspec.structs import replace
from test_guardian_counting import BYTES, FAMILIES, SENT, UDP, counted, many
from test_guardian_kinds import flood
from xdp_bench import XdpBench

from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, ListChange, Renew, RuleChange, RuleMode, RuleRead, Undo
from fwtop.model.rule import ConnectionLimit, Kind, Match, Mode, RateLimit, Rule, Setting
from tests.kernel.wire import received

pytestmark = pytest.mark.kernel
BENCH = XdpBench
__all__ = ["counted"]  # a fixture
OTHERS = {4: "198.18.9.0/24", 6: "2001:db8:9::/64"}
MOST = 20_000  # packets of one flood


def change(guardian, rule_id: str, rule: Rule, confirm_seconds: int = 0, **more) -> dict:
    request = RuleChange(rule_id, rule.to_dict(), confirm_seconds, **more)
    return guardian.demand(request).data["status"]


def on(kind: Kind, family: int, port: int = PORT, *sources: str, **more) -> Rule:
    payload = more.pop("payload", ())
    prefixes = tuple(map(Prefix.parse, sources))
    match = Match(prefixes, family=family, protocol=UDP, dport=port, payload=payload)
    return Rule("", kind, match, "x", 600, **more)


CASES: dict[str, tuple[Kind, dict]] = {
    "ipset": (Kind.IPSET, {}),
    "string": (Kind.STRING, {"payload": (BYTES,)}),
    "nftables": (Kind.NFTABLES, {}),
    "xdp": (Kind.XDP, {}),
    "tc": (Kind.TC, {}),
}
ONE_EACH = ("ipset-4-nft", "string-6-legacy", "nftables-6-nft", "xdp-4-nft")  # tc runs what xdp runs


@pytest.mark.one_each(*ONE_EACH)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_ports_and_sources_change_and_what_was_counted_stays(
    bench: XdpBench, counted, case: str, family: int, variant: str
) -> None:
    use_variant(bench, variant)
    path, (kind, more) = bench.path(family), CASES[case]
    attacker = bench.attacker(family)
    before = bench.state()
    here = on(kind, family, PORT, attacker, **more)
    with bench.connect() as guardian:
        rule_id = apply(guardian, here)
        assert flood(path, SENT) == 0
        assert counted(guardian, rule_id, SENT) == SENT
        for elsewhere in (
            replace(here, match=replace(here.match, dport=PORT + 1)),
            replace(here, match=replace(here.match, sources=(Prefix.parse(OTHERS[family]),))),
            replace(here, match=replace(here.match, sources=many(bench, family)[1:], dport=PORT + 1)),
        ):
            status = change(guardian, rule_id, elsewhere)
            assert (status["packets"], status["acting"]) == (SENT, True), status["not_acting"]
            assert flood(path, SENT) == SENT
            status = change(guardian, rule_id, here)
            assert (status["packets"], status["acting"]) == (SENT, True), status["not_acting"]
            assert not path.passes()
            counted(guardian, rule_id, SENT + 1)
            guardian.demand(Undo((rule_id,)))
            rule_id = apply(guardian, here)
            assert flood(path, SENT) == 0
            counted(guardian, rule_id, SENT)
        guardian.demand(Undo((rule_id,)))
        assert path.passes()
    assert bench.settled(before) == before


@pytest.mark.one_each("string", "tc")
@pytest.mark.parametrize("case", CASES)
def test_a_source_that_stays_keeps_its_count(bench: XdpBench, poll_until, case: str) -> None:
    path, (kind, more), attacker = bench.path(4), CASES[case], bench.attacker(4)
    here = on(kind, 4, PORT, attacker, **more)
    with bench.connect() as guardian:
        rule_id = apply(guardian, here)
        assert flood(path, SENT) == 0
        poll_until(lambda: rules_of(guardian)[rule_id]["entries"].get(attacker) == SENT)
        change(guardian, rule_id, on(kind, 4, PORT, attacker, OTHERS[4], **more))
        poll_until(lambda: rules_of(guardian)[rule_id]["entries"].get(attacker) == SENT)
        assert not path.passes()
        poll_until(lambda: rules_of(guardian)[rule_id]["entries"].get(attacker) == SENT + 1)


@pytest.mark.one_each("hashlimit-4-nft", "tc-6-legacy")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [Kind.HASHLIMIT, Kind.XDP, Kind.TC])
def test_another_rate_is_kept(bench: XdpBench, counted, kind: Kind, family: int, variant: str) -> None:
    use_variant(bench, variant)
    path = bench.path(family)
    rule = on(kind, family, PORT, bench.attacker(family), limit=RateLimit(1, 5))
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        above = SENT - flood(path, SENT)
        assert above >= SENT - 8
        status = change(guardian, rule_id, replace(rule, limit=RateLimit(1000, 1000)))
        assert status["packets"] >= above
        assert status["rule"]["limit"]["per_second"] == 1000
        if kind is Kind.HASHLIMIT:  # a new table begins with full buckets, a program's go on
            assert flood(path, SENT) == SENT
        change(guardian, rule_id, replace(rule, limit=RateLimit(1, 5)))
        assert flood(path, SENT) <= 8
        assert counted(guardian, rule_id, 2 * above - 5) >= 2 * above - 5


@contextmanager
def flooding(path) -> Iterator[tuple[Callable[[], int], Callable[[], int]]]:
    """Send without a pause, and receive; yields what tells how many were sent, and how many arrived."""
    over, counts = threading.Event(), [0, 0]

    def send() -> None:
        while not over.is_set() and counts[0] < MOST:
            path.send()
            counts[0] += 1
            over.wait(0.001)

    def receive() -> None:
        while (found := received(path.receiver, 0.3)) or not over.is_set():
            counts[1] += bool(found)

    threads = [threading.Thread(target=run) for run in (send, receive)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: counts[0], lambda: counts[1]
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.one_each(*ONE_EACH)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_no_packet_meets_neither_of_two_or_half_of_each(
    bench: XdpBench, case: str, family: int, variant: str, poll_until
) -> None:
    """What both drop never arrives, what none of them drops always does, whatever of a rule is exchanged."""
    use_variant(bench, variant)
    path, (kind, more), attacker = bench.path(family), CASES[case], bench.attacker(family)
    wider = on(kind, family, PORT, attacker, OTHERS[family], **more)
    both = (on(kind, family, PORT, attacker, **more), replace(wider, match=replace(wider.match, dport=None)))
    neither = (
        on(kind, family, PORT, OTHERS[family], **more),
        on(kind, family, PORT + 1, attacker, **more),
    )
    with bench.connect() as guardian:
        for (first, second), passes in ((both, False), (neither, True)):
            rule_id = apply(guardian, first)
            with flooding(path) as (sent, arrived):
                for rule in (second, first, second, first):
                    was = sent()
                    change(guardian, rule_id, rule)
                    poll_until(lambda was=was, sent=sent: sent() > was)
            assert arrived() == (sent() if passes else 0)
            guardian.demand(Undo((rule_id,)))


@pytest.mark.one_each("nftables", "xdp")
@pytest.mark.parametrize("case", ["ipset", "nftables", "xdp"])
def test_what_nobody_confirms_is_as_it_was_before(bench: XdpBench, poll_until, case: str) -> None:
    path, (kind, more), attacker = bench.path(4), CASES[case], bench.attacker(4)
    old, new = (on(kind, 4, PORT, source, **more) for source in (OTHERS[4], attacker))
    with bench.connect() as guardian:
        rule_id = apply(guardian, old)
        status = change(guardian, rule_id, new, 2)
        assert (status["state"], path.passes()) == ("provisional", False)
        poll_until(lambda: rules_of(guardian)[rule_id]["state"] == "confirmed")
        status = rules_of(guardian)[rule_id]
        assert status["rule"]["match"]["sources"] == [OTHERS[4]]
        assert (status["acting"], status["stamp"], path.passes()) == (True, 2, True)
        assert kind is Kind.XDP or "as before since" in status["note"]  # of XDP it says where
        change(guardian, rule_id, new, 60)
        assert not path.passes()
        assert change(guardian, rule_id, old)["state"] == "confirmed"  # taken back at once
        assert path.passes()
        change(guardian, rule_id, new, 60)
        guardian.demand(Keep(rule_id))
        assert (rules_of(guardian)[rule_id]["state"], path.passes()) == ("confirmed", False)


def test_a_trial_is_renewed_for_an_hour_in_all(bench: XdpBench, poll_until) -> None:
    path = bench.path(4)
    old, new = (on(Kind.IPSET, 4, PORT, source) for source in (OTHERS[4], bench.attacker(4)))
    with bench.connect() as guardian:
        rule_id = apply(guardian, old)
        with pytest.raises(FwtopError, match="not on trial"):
            guardian.demand(Renew(rule_id))
        began = change(guardian, rule_id, new, 60)
        renewed = guardian.demand(Renew(rule_id, 600)).data["status"]
        assert renewed["confirm_by"] - began["confirm_by"] > 530
        for seconds in (0, 3600):
            with pytest.raises(FwtopError, match="an hour at most") as raised:
                guardian.demand(Renew(rule_id, seconds))
            assert raised.value.field == "confirm_seconds"
        guardian.demand(Renew(rule_id, 1))
        poll_until(path.passes)
        assert rules_of(guardian)[rule_id]["state"] == "confirmed"


@pytest.mark.one_each
@pytest.mark.parametrize("case", ["ipset", "nftables", "xdp"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_change_outlives_the_guardian(bench: XdpBench, poll_until, counted, case: str, kept: bool) -> None:
    path, (kind, more), attacker = bench.path(4), CASES[case], bench.attacker(4)
    old = on(kind, 4, PORT, attacker, **more)
    new = replace(old, match=replace(old.match, dport=PORT + 1, sources=many(bench, 4)))
    with bench.connect() as guardian:
        rule_id = apply(guardian, old)
        assert flood(path, SENT) == 0
        assert counted(guardian, rule_id, SENT) == SENT
        change(guardian, rule_id, new, 0 if kept else 2)
        assert path.passes()
    bench.kill_guardian()
    with bench.connect() as guardian:
        if not kept:
            poll_until(lambda: rules_of(guardian)[rule_id]["state"] == "confirmed")
        status = rules_of(guardian)[rule_id]
        assert (status["acting"], status["sources_total"]) == (True, 1501 if kept else 1)
        assert counted(guardian, rule_id, SENT) == SENT
        assert path.passes() is kept


def test_what_nobody_confirmed_is_put_back_by_the_next_guardian(bench: XdpBench) -> None:
    path = bench.path(4)
    old, new = (on(Kind.IPSET, 4, PORT, source) for source in (bench.attacker(4), OTHERS[4]))
    with bench.connect() as guardian:
        rule_id = apply(guardian, old)
        change(guardian, rule_id, new, 1)
        assert path.passes()
        pid = int(guardian.about["pid"])
    bench.kill_guardian_of(pid)
    threading.Event().wait(1.1)  # the trial ends while nobody is there
    with bench.connect() as guardian:
        status = rules_of(guardian)[rule_id]
        assert (status["state"], status["acting"]) == ("confirmed", True)
        assert not path.passes()


@pytest.mark.parametrize("point", [Failpoint.SWITCHING, Failpoint.ASIDE, Failpoint.SWITCHED])
def test_a_crash_while_it_changes_ends_in_the_new_one(bench: XdpBench, point: Failpoint) -> None:
    path = bench.path(4)
    before = bench.state()
    old, new = (on(Kind.IPSET, 4, PORT, source) for source in (OTHERS[4], bench.attacker(4)))
    with bench.connect() as guardian:
        rule_id = apply(guardian, old)
    bench.kill_guardian()
    with bench.connect(crash_at=point.value) as doomed, pytest.raises(FwtopError, match="ended before"):
        change(doomed, rule_id, new)
    with bench.connect() as guardian:
        status = rules_of(guardian)[rule_id]
        assert (status["acting"], status["rule"]["match"]["sources"]) == (True, [bench.attacker(4)])
        assert not path.passes()
        guardian.demand(Undo((rule_id,)))
    assert bench.settled(before) == before


def test_the_family_of_a_rule_changes(bench: XdpBench, counted) -> None:
    paths = {family: bench.path(family) for family in FAMILIES}
    before = bench.state()
    with bench.connect() as guardian:
        rules = [on(Kind.IPSET, family, PORT, bench.attacker(family)) for family in FAMILIES]
        rule_id = apply(guardian, rules[0])
        for rule, dropped in ((rules[1], 6), (rules[0], 4), (rules[1], 6)):
            status = change(guardian, rule_id, rule)
            assert status["acting"], status["not_acting"]
            assert [family for family in FAMILIES if not paths[family].passes()] == [dropped]
        assert counted(guardian, rule_id, 3) == 3
        guardian.demand(Undo((rule_id,)))
    assert bench.settled(before) == before


REFUSED = {
    Kind.CONNLIMIT: (
        Match(protocol=6, dport=80),
        {"connections": ConnectionLimit(9)},
        "the connections that it",
    ),
    Kind.SYNPROXY: (Match(protocol=6, dport=80), {}, "handshakes are under way"),
    Kind.NOTRACK: (Match(protocol=UDP, dport=9), {}, "tracked, or not"),
    Kind.SYSCTL: (Match(), {"settings": (Setting("net.ipv4.tcp_syncookies", 2),)}, "matches no packets"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_others_refuse_with_the_reason(bench: XdpBench, kind: Kind) -> None:
    match, more, why = REFUSED[kind]
    with bench.connect() as guardian:
        rule_id = apply(guardian, Rule("", kind, match, "x", 600, **more), force=True)
        given = guardian.demand(RuleRead(rule_id)).data["rule"]
        given["labels"] = {"a": "b"}
        with pytest.raises(FwtopError, match=why):
            guardian.demand(RuleChange(rule_id, given, 0))


def test_what_a_change_can_not_do(bench: XdpBench) -> None:
    rule = on(Kind.IPSET, 4, PORT, OTHERS[4])
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        for field, value in (("kind", "xdp"), ("mode", "count"), ("ttl_seconds", 5), ("group", "x")):
            with pytest.raises(FwtopError, match=field) as raised:
                guardian.demand(RuleChange(rule_id, {**rule.to_dict(), field: value}, 0))
            assert raised.value.field == f"rule.{field}"
        other = replace(rule, match=replace(rule.match, dport=PORT + 1))
        with pytest.raises(FwtopError, match="stamp 7"):
            change(guardian, rule_id, other, if_stamp=7)
        assert change(guardian, rule_id, other, if_stamp=0)["stamp"] == 1
        assert change(guardian, rule_id, other)["stamp"] == 1  # it is that already
        own = replace(rule, match=replace(rule.match, sources=(Prefix.parse("0.0.0.0/1"),)))
        with pytest.raises(FwtopError, match="force"):
            change(guardian, rule_id, own)
        twin = apply(guardian, rule)
        with pytest.raises(FwtopError, match="does this already"):
            change(guardian, twin, other)
        guardian.demand(RuleMode((twin,), Mode.OFF, 0))
        with pytest.raises(FwtopError, match="it is off"):
            change(guardian, twin, replace(rule, labels={"a": "b"}, mode=Mode.OFF))


def test_a_rule_on_a_list_changes_its_port_and_follows_the_list(bench: XdpBench) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        guardian.demand(ListChange("bad", "create", entries=(bench.attacker(4),)))
        match = Match(family=4, protocol=UDP, dport=PORT + 1)
        rule = Rule("", Kind.IPSET, match, "x", 600, origin="list:bad")
        rule_id = apply(guardian, rule)
        assert path.passes()
        assert change(guardian, rule_id, replace(rule, match=replace(match, dport=PORT)))["acting"]
        assert not path.passes()
        guardian.demand(ListChange("bad", "remove", entries=(bench.attacker(4),)))
        assert path.passes()
