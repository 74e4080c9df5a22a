"""XDP rules by the guardian: a packet passes, is dropped, passes again; nothing is left behind."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from guardian_bench import PORT, answers, apply, inside, rules_of
from msgspec.structs import replace
from xdp_bench import XDP_PASS, XdpBench, at_tc, xdp
from xdp_frames import ethernet, ipv4, ipv6, udp

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Plan, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from tests.kernel.wire import attach_foreign_xdp, let_arrive, put_behind_a_bridge

pytestmark = pytest.mark.kernel
BENCH = XdpBench


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", [4, 6])
def test_passes_then_blocked_then_passes_again(bench: XdpBench, family: int) -> None:
    before = bench.state()
    path = bench.path(family)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        rule_id = apply(guardian, xdp(Match(family=family, protocol=17, dport=PORT)))
        assert not path.passes()
        assert not path.passes()
        status = rules_of(guardian)[rule_id]
        assert status["packets"] == 2
        assert status["bytes"] > 2 * 42
        assert "XDP in the driver of v0" in status["note"]
        assert "xdp" in bench.links()
        guardian.demand(Undo((rule_id,)))
        assert path.passes(wait_s=30)
    assert bench.settled(before) == before


@pytest.mark.one_each
@pytest.mark.parametrize("foreign", [False, True], ids=["alone", "behind somebody else's XDP"])
@pytest.mark.parametrize("family", [4, 6])
def test_at_tc_passes_then_blocked_then_passes_again(bench: XdpBench, family: int, foreign: bool) -> None:
    if foreign:
        attach_foreign_xdp(bench.pair.victim, XDP_PASS)
    before = bench.state()
    path = bench.path(family)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        rule_id = apply(guardian, at_tc(Match(family=family, protocol=17, dport=PORT)))
        assert not path.passes()
        status = rules_of(guardian)[rule_id]
        assert status["packets"] == 1
        assert status["note"] == "tc ingress of v0"
        guardian.demand(Undo((rule_id,)))
        assert path.passes(wait_s=30)
    assert bench.settled(before) == before


def test_rules_at_xdp_and_at_tc_are_independent(bench: XdpBench) -> None:
    """Each hook has a program for its own rules, and none after its last rule."""
    before = bench.state()
    with bench.connect() as guardian:
        tc_rule = apply(guardian, at_tc(Match(family=4, protocol=17, dport=PORT)))
        assert "xdp" not in bench.links()
        xdp_rule = apply(guardian, xdp(Match(family=6, protocol=17, dport=PORT)))
        assert "xdp" in bench.links()
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
        counted = {rule_id: item["packets"] for rule_id, item in rules_of(guardian).items()}
        assert counted == {tc_rule: 1, xdp_rule: 1}
        guardian.demand(Undo((xdp_rule,)))
        assert "xdp" not in bench.links()
        assert not bench.path(4).passes()
        assert bench.path(6).passes(wait_s=30)
        guardian.demand(Undo((tc_rule,)))
    assert bench.settled(before) == before


def test_rules_survive_the_removal_of_a_foreign_program(bench: XdpBench) -> None:
    """With XDP occupied, one program at tc has the rules of both kinds; each packet counts once."""
    attach_foreign_xdp(bench.pair.victim, XDP_PASS)
    with bench.connect() as guardian:
        tc_rule = apply(guardian, at_tc(Match(family=4, protocol=17, dport=PORT)))
        xdp_rule = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
        counted = {rule_id: item["packets"] for rule_id, item in rules_of(guardian).items()}
        assert sum(counted.values()) == 2
        assert counted[xdp_rule] >= 1
        bench.pair.victim.run("ip", "link", "set", "dev", "v0", "xdp", "off")
        other = apply(guardian, xdp(Match(protocol=17, dport=9)))
        notes = {rule_id: item["note"] for rule_id, item in rules_of(guardian).items()}
        where = "XDP in the driver of v0"
        assert notes == {tc_rule: "tc ingress of v0", xdp_rule: where, other: where}
        assert not bench.path(6).passes()
        guardian.demand(Undo((xdp_rule, other)))
        assert not bench.path(4).passes()
        assert bench.path(6).passes(wait_s=30)
        guardian.demand(Undo((tc_rule,)))
        assert bench.path(4).passes(wait_s=30)


@pytest.mark.one_each("tc")
@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
def test_a_rate_limit_drops_what_is_above_it(bench: XdpBench, kind: Kind) -> None:
    before = bench.state()
    path = bench.path(4)
    assert path.passes(wait_s=30)
    rule = Rule("", kind, Match(protocol=17, dport=PORT), "limit", 600, limit=RateLimit(1, 20, prefix_v4=24))
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        began = time.monotonic()
        passed = sum(path.passes() for _ in range(25))
        assert 20 <= passed <= 21 + time.monotonic() - began  # one more a second
        began = time.monotonic()
        apply(guardian, xdp(Match(protocol=17, dport=9)))
        passed = sum(path.passes() for _ in range(20))
        assert passed <= 2 + time.monotonic() - began  # a swap leaves the buckets as they are
        assert rules_of(guardian)[rule_id]["packets"] >= 4
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=30)
    assert bench.settled(before) == before


EVIL, TYPED = (
    PayloadMatch(b"\x04evil\x04test" + end, at, None, "evil.test.")
    for end, at in ((b"\0", 12), (b"\0\0\x01", None))
)
# What a rule matches, with payloads that it drops and payloads that it lets pass
MATCHES = {
    "source": (lambda b: Match(sources=(Prefix.parse(b.pair.attacker.ipv4),)), [b""], []),
    "other source": (lambda b: Match(sources=(Prefix.parse("10.77.9.0/24"),)), [], [b""]),
    "destination": (lambda b: Match(destinations=(Prefix.parse("10.77.0.1"),), protocol=17), [b""], []),
    "length": (lambda b: Match(protocol=17, ip_length=Range(100, 200)), [bytes(100)], [b"", bytes(300)]),
    "ttl": (lambda b: Match(protocol=17, ttl=Range(64, 64)), [b""], []),
    "payload at": (lambda b: Match(payload=(PayloadMatch(b"cde", 2),)), [b"abcdefg"], [b"abxcdefg"]),
    "payload anywhere": (
        lambda b: Match(payload=(PayloadMatch(b"attack"),)),
        [b"x" * 90 + b"attack"],
        [b"x" * 125 + b"attack"],
    ),
    "masked bits": (
        lambda b: Match(payload=(PayloadMatch(b"\x10\x20", 1, b"\xf0\x00"),)),
        [b"a\x1fz"],
        [b"a\x2fz"],
    ),
    "name in any case": (lambda b: Match(payload=(EVIL,)), [bytes(12) + b"\x04EvIl\x04tEST\x00"], []),
    "name with its type": (
        lambda b: Match(payload=(TYPED,)),
        [bytes(12) + b"\x04evil\x04TEST\0\0\x01\0\x01"],
        [bytes(12) + b"\x04evil\x04TEST\0\0\x1c\0\x01"],
    ),
    "fragment": (lambda b: Match(fragment=True), [], [b""]),
}


def test_a_rule_drops_what_meets_its_conditions_and_nothing_else(bench: XdpBench) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        for name, (match, dropped, passed) in MATCHES.items():
            assert all(path.passes(payload, wait_s=30) for payload in (*dropped, *passed)), name
            rule_id = apply(guardian, xdp(match(bench)), force=True)
            assert not any(path.passes(payload) for payload in dropped), name
            assert all(path.passes(payload, wait_s=30) for payload in passed), name
            guardian.demand(Undo((rule_id,)))
    assert path.passes(wait_s=30)


def _is_dropped(bench: XdpBench, guardian: GuardianClient, family: int, echo: int, rule_id: str) -> bool:
    """Send an echo request that must not be answered; returns whether the rule has counted one."""
    assert not answers(bench, family, echo)
    return int(rules_of(guardian)[rule_id]["packets"]) >= 1


@pytest.mark.one_each("xdp")
@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
def test_icmp_type_matches_and_neighbour_discovery_passes(bench: XdpBench, kind: Kind, poll_until) -> None:
    """Neighbour discovery passes a rule against all of ICMPv6; without it IPv6 would stop working."""
    path = bench.path(6)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        for family, echo in ((4, 8), (6, 128)):
            assert answers(bench, family, echo, wait_s=30)
            rule_id = apply(guardian, Rule("", kind, Match(family=family, icmp_type=echo), "drop", 600))
            poll_until(partial(_is_dropped, bench, guardian, family, echo, rule_id))
            guardian.demand(Undo((rule_id,)))
            assert answers(bench, family, echo, wait_s=30)
        apply(guardian, Rule("", kind, Match(family=6, protocol=58), "drop", 600), force=True)
        assert not answers(bench, 6, 128)
        for end in (bench.pair.attacker, bench.pair.victim):
            end.run("ip", "neighbour", "flush", "all")
        assert path.passes(wait_s=30)


def test_a_rule_on_fragments_drops_all_of_them_and_no_whole_packet(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        apply(guardian, xdp(Match(protocol=17, fragment=True)), force=True)
        assert not bench.path(4).passes(bytes(3000))
        assert not bench.path(6).passes(bytes(3000))
        assert bench.path(4).passes(b"whole", wait_s=30)


def test_behind_vlan_tags(bench: XdpBench, poll_until) -> None:
    """This kernel has no VLAN devices: frames are built here and received by a packet socket."""
    with inside(bench.pair.attacker.netns):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with inside(bench.pair.victim.netns):
        receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    with sender, receiver:
        sender.bind(("a0", 0))
        receiver.bind(("v0", 0))
        receiver.setblocking(False)

        def arrives(frame: bytes) -> bool:
            sender.send(frame)
            let_arrive()
            with suppress(BlockingIOError):
                while frame[-16:] not in receiver.recv(2048):
                    pass
                return True
            return False

        tags = ((0x88A8, 7), (0x8100, 5))
        hit = ethernet(ipv4(udp(9, PORT, bytes(range(16))), 17), 0x0800, tags)
        other = ethernet(ipv6(udp(9, PORT, bytes(range(1, 17))), 17), 0x86DD, tags)
        assert arrives(hit)
        with bench.connect() as guardian:
            apply(guardian, xdp(Match(family=4, protocol=17, dport=PORT)))
            assert not arrives(hit)
            assert arrives(other)
            guardian.demand(Undo(all=True))
        assert arrives(hit)


def test_the_allow_list_takes_precedence_and_changes_take_effect(bench: XdpBench, poll_until) -> None:
    other = bench.pair.attacker
    other.run("ip", "address", "add", "10.77.0.9/24", "dev", other.interface)
    path = bench.path(4)
    with bench.connect() as guardian:
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
        (bench.directory / "allow").write_text("10.77.0.2\n")
        poll_until(path.passes)
        (bench.directory / "allow").write_text("")
        poll_until(lambda: not path.passes())


def test_with_a_foreign_program_the_rules_run_at_tc(bench: XdpBench, tmp_path: Path) -> None:
    path = bench.path(4)
    foreign = attach_foreign_xdp(bench.pair.victim, XDP_PASS)
    try:
        with bench.connect() as guardian:
            rule_id = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
            assert not path.passes()
            status = rules_of(guardian)[rule_id]
            assert "tc ingress of v0" in status["note"]
            assert f"somebody_else (id {foreign})" in status["note"]
            assert status["packets"] == 1
            assert f"id {foreign}" in bench.links()
            second = apply(guardian, xdp(Match(protocol=17, dport=9)))
            assert rules_of(guardian)[second]["note"] == status["note"]
            guardian.demand(Undo(all=True))
        assert path.passes(wait_s=30)
        assert f"id {foreign}" in bench.links()
    finally:
        bench.pair.victim.run("ip", "link", "set", "dev", "v0", "xdp", "off")


def test_generic_xdp_without_driver_support(bench: XdpBench) -> None:
    """A bridge has no native XDP; the rule's note says what that costs."""
    put_behind_a_bridge(bench.pair.victim)
    path = bench.path(4)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        rule_id = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
        status = rules_of(guardian)[rule_id]
        assert "generic XDP on br0" in status["note"]
        assert status["packets"] == 1
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=30)


@pytest.mark.one_each("xdp")
@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
def test_long_lists(kind: Kind, bench: XdpBench) -> None:
    path = bench.path(4)
    sources = tuple(Prefix(4, (203 << 24) + (n << 8), 24) for n in range(3000))
    mine = (Prefix.parse(bench.pair.attacker.ipv4), Prefix.parse("fd77::2/127"))
    with bench.connect() as guardian:
        rule = replace(xdp(Match(sources=sources + mine)), kind=kind)
        rule_id = guardian.apply(rule, 0).data["status"]["rule"]["id"]
        assert not path.passes()
        assert not bench.path(6).passes()
        hit = rules_of(guardian)[rule_id]["entries"]
        assert hit == {"fd77::2/127": 1, bench.pair.attacker.ipv4: 1}
        other = apply(guardian, xdp(Match(protocol=17, dport=9)))
        assert not path.passes()
        guardian.demand(Undo((other,)))
        assert rules_of(guardian)[rule_id]["packets"] >= 3
    bench.kill_guardian()
    with bench.connect() as successor:
        apply(successor, xdp(Match(protocol=17, dport=9)))
        assert not path.passes()
        status = rules_of(successor)[rule_id]
        assert status["entries"][bench.pair.attacker.ipv4] == 3
        assert sum(status["entries"].values()) == status["packets"]


def test_rules_that_cant_be_compiled_are_refused(bench: XdpBench) -> None:
    before = bench.state()
    with bench.connect() as guardian, pytest.raises(FwtopError, match="the payload up to byte 2048"):
        apply(guardian, xdp(Match(payload=(PayloadMatch(b"x", 2048),))))
    assert bench.settled(before) == before


def test_plan_lists_the_steps(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        data = guardian.demand(Plan(xdp(Match(protocol=17, dport=PORT)).to_dict())).data
        assert data["refused"] is None
        assert any("bpf link create: XDP" in line for line in data["commands"])
        assert "xdp" not in bench.links()
