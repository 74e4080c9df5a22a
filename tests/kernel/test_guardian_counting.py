"""Rules that only count: every packet arrives, and the counter tells; then they drop, and count again.

A table of what rules consist of in the kernel, by family and variant of iptables.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from guardian_bench import PORT, VARIANTS, apply, rules_of, tcp_connection, use_variant
from msgspec.structs import replace
from test_guardian_kinds import flood
from xdp_bench import XdpBench

from fwtop.cli.rules import group
from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix, prefixes_of
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, ListChange, Plan, Repair, RuleMode, Undo
from fwtop.model.rule import (
    ConnectionLimit,
    Kind,
    Level,
    Match,
    Mode,
    PayloadMatch,
    Protection,
    RateLimit,
    Rule,
    Setting,
)
from fwtop.policy.document import parse
from fwtop.policy.live import Live
from fwtop.policy.transaction import commit
from fwtop.policy.versions import Versions
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
BENCH = XdpBench
UDP, TCP = 17, 6
FAMILIES = (4, 6)
SENT, BURST = 30, 5
NET = {4: "10.99.{}.0/24", 6: "2001:db8:{:x}::/64"}
ON_PORT = {"protocol": UDP, "dport": PORT}


def many(bench: XdpBench, family: int) -> tuple[Prefix, ...]:
    """Return more sources than an ipset with timeouts, or a program's code, holds."""
    others = tuple(
        Prefix.parse(f"{'198.18' if family == 4 else '2001:db8:ff:'}{_tail(family, at)}")
        for at in range(1500)
    )
    return (Prefix.parse(bench.attacker(family)), *others)


def _tail(family: int, at: int) -> str:
    return f".{at >> 8}.{at & 255}" if family == 4 else f":{at + 1:x}"


def on(kind: Kind, **more) -> Callable[[XdpBench, int], Rule]:
    """Return a rule on the port, with other conditions."""
    limit, payload = more.pop("limit", None), more.pop("payload", ())

    def made(bench: XdpBench, family: int) -> Rule:
        # Of sources: a table that may be full drops what it can't count
        sources = (Prefix.parse(bench.attacker(family)),) if kind is Kind.HASHLIMIT else ()
        match = Match(sources=sources, family=family, **ON_PORT, payload=payload)
        return Rule("", kind, match, "x", 600, limit=limit)

    return made


def block(kind: Kind, *, long: bool = False, listed: bool = False) -> Callable[[XdpBench, int], Rule]:
    def made(bench: XdpBench, family: int) -> Rule:
        sources = many(bench, family) if long else (Prefix.parse(bench.attacker(family)),)
        if not listed:
            return Rule("", kind, Match(sources=sources), "x", 600)
        with bench.connect() as guardian:
            guardian.demand(ListChange("bad", "create", entries=tuple(map(str, sources))))
        return Rule("", kind, Match(), "x", 600, origin="list:bad")

    return made


def closed(level: Level, *, strict: bool = False) -> Callable[[XdpBench, int], Rule]:
    def made(bench: XdpBench, family: int) -> Rule:
        with bench.connect() as guardian:
            guardian.demand(ListChange("good", "create", entries=("192.0.2.1", "2001:db8::1")))
        protection = Protection(level, ("good",), strict=strict)
        return Rule("", Kind.PROTECT, Match(family=family, **ON_PORT), "x", 600, protection=protection)

    return made


def playbook(bench: XdpBench, family: int) -> Rule:
    sources = (Prefix.parse(bench.attacker(family)),)
    parts = tuple(
        Rule(
            "", kind, Match(sources=sources, family=family, **ON_PORT, payload=payload), "", 600, limit=limit
        )
        for kind, payload, limit in (
            (Kind.STRING, (PayloadMatch(b"never"),), None),
            (Kind.HASHLIMIT, (), RateLimit(1, BURST)),
        )
    )
    return Rule("", Kind.HARDEN, Match(), "x", 600, playbook="test", parts=parts)


RATE = RateLimit(1, BURST)
BYTES, AT_START = PayloadMatch(b"#"), PayloadMatch(b"#", offset=0)
CASES = {
    "ipset": block(Kind.IPSET),
    "ipset-long": block(Kind.IPSET, long=True),
    "ipset-list": block(Kind.IPSET, listed=True),
    "hashlimit": on(Kind.HASHLIMIT, limit=RATE),
    "string": on(Kind.STRING, payload=(BYTES,)),
    "string-offset": on(Kind.STRING, payload=(AT_START,)),
    "nftables": on(Kind.NFTABLES),
    "nftables-sources": block(Kind.NFTABLES),
    "nftables-list": block(Kind.NFTABLES, listed=True),
    "xdp": on(Kind.XDP),
    "xdp-sources": block(Kind.XDP),
    "xdp-long": block(Kind.XDP, long=True),
    "xdp-list": block(Kind.XDP, listed=True),
    "xdp-limit": on(Kind.XDP, limit=RATE),
    "xdp-search": on(Kind.XDP, payload=(BYTES,)),
    "tc": on(Kind.TC),
    "tc-sources": block(Kind.TC),
    "tc-limit": on(Kind.TC, limit=RATE),
    "tc-offset": on(Kind.TC, payload=(AT_START,)),
    "protect": closed(Level.PROTECTED),
    "protect-closed": closed(Level.CLOSED),
    "protect-strict": closed(Level.PROTECTED, strict=True),
    "playbook": playbook,
}
# Their programs differ in parts that others here have, and a program takes a second to compile
ALIKE = (
    "ipset-long", "ipset-list", "string-offset", "nftables-sources", "protect-closed", "protect-strict",
    "xdp", "xdp-sources", "xdp-long", "xdp-search", "tc", "tc-limit", "tc-sources",
)  # fmt: skip
ONE_EACH = [
    f"{case}-{FAMILIES[number % 2]}-{VARIANTS[number // 2 % 2]}"
    for number, case in enumerate(case for case in CASES if case not in ALIKE)
]


def packets(guardian, rule_id: str) -> int:
    return rules_of(guardian)[rule_id]["packets"]


@pytest.fixture
def counted(poll_until) -> Callable[..., int]:
    """Return a function that waits for a rule to have counted so many packets; counters are read late."""

    def counted(guardian, rule_id: str, least: int) -> int:
        poll_until(lambda: packets(guardian, rule_id) >= least)
        return packets(guardian, rule_id)

    return counted


def as_mode(rule: Rule, mode: Mode) -> dict:
    return {**rule.to_dict(), "mode": mode.value}


def give_mode(guardian, rule_id: str, mode: Mode, confirm_seconds: int = 0, *, force: bool = False) -> dict:
    return guardian.demand(RuleMode((rule_id,), mode, confirm_seconds, force)).data["rules"][0]


@pytest.mark.one_each(*ONE_EACH)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_a_rule_counts_then_drops_then_counts_again(
    bench: XdpBench, counted, case: str, family: int, variant: str
) -> None:
    use_variant(bench, variant)
    path = bench.path(family)
    rule = CASES[case](bench, family)
    before = bench.state()
    limited = "limit" in case or case == "playbook"
    least, most = (SENT - BURST - 3, SENT - BURST) if limited else (SENT, SENT)
    with bench.connect() as guardian:
        rule_id = apply(guardian, Rule.from_dict(as_mode(rule, Mode.COUNT)), 30)
        status = rules_of(guardian)[rule_id]
        assert (status["state"], status["rule"]["mode"]) == ("confirmed", "count")  # no trial
        assert flood(path, SENT) == SENT
        would = counted(guardian, rule_id, least)
        assert would <= most
        shown = give_mode(guardian, rule_id, Mode.DROP)
        assert (shown["packets"], shown["rule"]["mode"]) == (would, "drop")
        arrived = flood(path, SENT)
        assert arrived <= (BURST + 3 if limited else 0)
        both = would + SENT - arrived
        assert counted(guardian, rule_id, both) == both
        assert give_mode(guardian, rule_id, Mode.COUNT)["packets"] == both
        assert flood(path, SENT) == SENT
        seen = counted(guardian, rule_id, both + least)
        give_mode(guardian, rule_id, Mode.OFF)
        assert flood(path, SENT) == SENT
        assert give_mode(guardian, rule_id, Mode.COUNT)["packets"] == seen
        assert flood(path, SENT) == SENT
        counted(guardian, rule_id, seen + least)
        assert rules_of(guardian)[rule_id]["acting"], rules_of(guardian)[rule_id]["not_acting"]
        guardian.demand(Undo((rule_id,)))
        assert flood(path, SENT) == SENT
    assert bench.settled(before) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_connections_above_a_limit_are_counted_and_opened(bench: XdpBench, counted, family: int) -> None:
    limit = ConnectionLimit(1)
    rule = Rule(
        "", Kind.CONNLIMIT, Match(family=family, protocol=TCP), "x", 600, connections=limit, mode=Mode.COUNT
    )
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        with tcp_connection(bench, family) as (first, _), ExitStack() as others:
            address, port, *_ = first.getpeername()
            with inside(bench.netns):
                server = others.enter_context(socket.create_server((address, port + 1), family=first.family))
            with inside(bench.pair.attacker.netns):
                others.enter_context(socket.create_connection((address, port + 1), timeout=60))
            others.enter_context(server.accept()[0])
        assert counted(guardian, rule_id, 1) == 1
        assert give_mode(guardian, rule_id, Mode.DROP, force=True)["packets"] == 1


def test_a_counting_rule_leaves_its_packets_to_those_behind_it(bench: XdpBench, counted) -> None:
    """At each hook a rule that drops comes after one that counts the same packets."""
    path = bench.path(4)
    match = Match(family=4, **ON_PORT)
    kinds = ((Kind.XDP, {}), (Kind.TC, {}), (Kind.NFTABLES, {}), (Kind.TC, {"limit": RateLimit(1, 1)}))
    for kind, more in kinds:
        with bench.connect() as guardian:
            counts = apply(guardian, Rule("", kind, match, "x", 600, mode=Mode.COUNT, **more))
            wider = Match(family=4, protocol=UDP)
            drops = apply(guardian, Rule("", kind, wider, "y", 600, **more), force=True)
            arrived = flood(path, SENT)
            assert arrived <= (2 if more else 0)
            assert counted(guardian, drops, SENT - arrived) == SENT - arrived
            assert counted(guardian, counts, SENT - 3) >= SENT - 3
            guardian.demand(Undo((counts, drops)))


def test_a_counting_limit_does_not_halve_the_rate_of_another(bench: XdpBench) -> None:
    """A packet that leaves the fast path meets all rules again: their buckets must not be charged twice."""
    path = bench.path(4)
    limit = RateLimit(1, 20)
    with bench.connect() as guardian:
        apply(guardian, Rule("", Kind.XDP, Match(family=4, protocol=UDP), "x", 600, limit=limit), force=True)
        apply(guardian, Rule("", Kind.XDP, Match(family=4, **ON_PORT), "y", 600, mode=Mode.COUNT))
        assert flood(path, SENT) >= 20


def test_a_trial_of_dropping_ends_in_counting(bench: XdpBench, poll_until) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        rule_id = apply(guardian, Rule.from_dict(as_mode(bench.block_rule(4), Mode.COUNT)))
        shown = give_mode(guardian, rule_id, Mode.DROP, 2)
        assert (shown["state"], path.passes()) == ("provisional", False)
        poll_until(lambda: rules_of(guardian)[rule_id]["rule"]["mode"] == "count")
        assert path.passes()
        status = rules_of(guardian)[rule_id]
        assert status["state"] == "confirmed"
        assert "counts only" in status["note"]


def test_the_mode_outlives_the_guardian(bench: XdpBench) -> None:
    path = bench.path(4)
    made = (bench.block_rule(4), Rule("", Kind.XDP, Match(**ON_PORT), "x", 600))
    with bench.connect() as guardian:
        ids = [apply(guardian, Rule.from_dict(as_mode(rule, Mode.COUNT))) for rule in made]
    for mode, arrives in ((Mode.COUNT, True), (Mode.OFF, True), (Mode.DROP, False), (Mode.COUNT, True)):
        with bench.connect() as guardian:
            guardian.demand(RuleMode(tuple(ids), mode, 0))
        bench.kill_guardian()
        assert path.passes() is arrives
        with bench.connect() as guardian:
            found = rules_of(guardian)
            assert {found[rule_id]["rule"]["mode"] for rule_id in ids} == {mode.value}
            assert all(found[rule_id]["acting"] for rule_id in ids)
        assert path.passes() is arrives


@pytest.mark.parametrize("point", [Failpoint.SWITCHING, Failpoint.SWITCHED])
@pytest.mark.parametrize("mode", [Mode.DROP, Mode.COUNT])
def test_a_crash_while_it_changes_ends_in_the_new_mode(bench: XdpBench, point: Failpoint, mode: Mode) -> None:
    path = bench.path(4)
    before = Mode.COUNT if mode is Mode.DROP else Mode.DROP
    with bench.connect() as guardian:
        rule_id = apply(guardian, Rule.from_dict(as_mode(bench.block_rule(4), before)))
    bench.kill_guardian()
    doomed = bench.connect(crash_at=point.value)
    with doomed, pytest.raises(FwtopError, match="ended before it answered"):
        give_mode(doomed, rule_id, mode)
    with bench.connect() as guardian:
        assert rules_of(guardian)[rule_id]["acting"]
        assert path.passes() is (mode is Mode.COUNT)


def test_what_cannot_count_says_why(bench: XdpBench) -> None:
    on_port = Match(protocol=TCP, dport=80)
    refused = {
        "SYN proxy can't tell": Rule("", Kind.SYNPROXY, on_port, "x", 600),
        "matches no packets": Rule(
            "", Kind.SYSCTL, Match(), "x", 600, settings=(Setting("net.ipv4.tcp_syncookies", 1),)
        ),
        "drops nothing": Rule("", Kind.NOTRACK, on_port, "x", 600),
        "once its table is full": Rule("", Kind.HASHLIMIT, on_port, "x", 600, limit=RateLimit(1, 1)),
    }
    with bench.connect() as guardian:
        for why, rule in refused.items():
            with pytest.raises(FwtopError, match=why):
                apply(guardian, Rule.from_dict(as_mode(rule, Mode.COUNT)))
        # What a drop would be refused for harms nobody who is only counted
        broad = Rule("", Kind.XDP, Match(family=4, protocol=TCP), "x", 600)
        needed = guardian.demand(Plan(broad.to_dict())).data["needs_force"]
        assert needed
        rule_id = apply(guardian, Rule.from_dict(as_mode(broad, Mode.COUNT)))
        with pytest.raises(FwtopError, match="without confirmation"):
            give_mode(guardian, rule_id, Mode.DROP)
        assert rules_of(guardian)[rule_id]["rule"]["mode"] == "count"


def test_open_connections_are_closed_once_it_drops(bench: XdpBench) -> None:
    with bench.connect() as guardian, tcp_connection(bench, 4) as (client, server):
        rule = replace(bench.block_rule(4), close_open=True, mode=Mode.COUNT)
        rule_id = apply(guardian, rule)
        client.send(b"x")
        assert server.recv(1) == b"x"
        assert "closed 1 open connections" in give_mode(guardian, rule_id, Mode.DROP, force=True)["note"]


def test_a_switched_group_stays_so_over_a_reboot_and_the_next_policy(
    bench: XdpBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        f'schema = 1\n[list.bad]\nentries = ["{bench.attacker(4)}"]\n'
        '[[block]]\nlist = "bad"\ngroup = "web"\n[[block]]\nlist = "bad"\nvia = "nftables"\ngroup = "web"\n'
    )
    policy = parse(text, "policy", lambda _, table: prefixes_of(table.texts))
    versions = Versions(bench.netns, tmp_path)
    monkeypatch.setattr(group, "versions_of", lambda _: versions)
    monkeypatch.setattr(group, "discovery", SimpleNamespace(connect=lambda **_: bench.connect()))
    path = bench.path(4)

    def switch(*words: str) -> None:
        parser = argparse.ArgumentParser()
        group.arguments(parser)
        assert group.run(parser.parse_args(words)) == 0

    with bench.connect() as guardian:
        commit(Live(guardian), versions, policy, "first", force=False)
        assert not path.passes()
        ids = list(rules_of(guardian))
        switch("count", "web")
        assert path.passes()
        assert list(rules_of(guardian)) == ids, "nothing is loaded again"
        assert not Live(guardian, versions.modes()).difference(policy, {"bad"})
        switch("list")
        assert "count" in capsys.readouterr().out
        guardian.demand(Undo(all=True))  # as a reboot does
        Live(guardian, versions.modes()).put_in(policy, {"bad"}, force=True)
        assert {one["rule"]["mode"] for one in rules_of(guardian).values()} == {"count"}
        switch("on", "web", "--yes")
        assert not path.passes()
        switch("off", "web")
        assert path.passes()
        for rule_id in rules_of(guardian):  # as the guardian does at half of a policy's time
            guardian.demand(Keep(rule_id))
            guardian.demand(Repair(rule_id))
        assert path.passes()
        with pytest.raises(FwtopError, match="there are: web"):
            switch("count", "mail")


def test_what_a_screen_has_drop_counts_again_when_it_is_gone(bench: XdpBench, poll_until) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        with bench.connect(role="console") as console:
            rule_id = apply(console, replace(bench.block_rule(4), mode=Mode.COUNT), 30)
            with pytest.raises(FwtopError, match="on trial first"):
                give_mode(console, rule_id, Mode.DROP)
            give_mode(console, rule_id, Mode.DROP, 30)
            assert not path.passes()
        poll_until(lambda: rules_of(guardian)[rule_id]["rule"]["mode"] == "count")
        assert path.passes()
