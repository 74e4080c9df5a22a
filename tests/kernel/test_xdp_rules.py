"""XDP rules through the guardian: a packet passes, is blocked, passes again; and nothing is left behind."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from mitigate_bench import PORT, Bench, answers, apply, inside, kill, rules_of
from xdp_frames import ethernet, ipv4, ipv6, udp

from fwtop.mitigate import client
from fwtop.mitigate.client import GuardianClient
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import SOCKET_DIRECTORY, Keep, Plan, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from tests.kernel.wire import attach_foreign_xdp, put_behind_a_bridge

pytestmark = pytest.mark.kernel
BPFFS = Path("/sys/fs/bpf")
XDP_PASS = 2


class XdpBench(Bench):
    def state(self) -> dict[str, str]:
        """Return all that undo must leave as it was, what XDP touches included."""
        found = super().state()
        found["link"] = self.pair.victim.run("ip", "-d", "link").stdout
        found["tc"] = self.pair.victim.run("tc", "qdisc").stdout
        found["features"] = self.pair.victim.run("ethtool", "-k", "v0").stdout
        pins = BPFFS / "fwtop" / str(os.stat(f"/run/netns/{self.netns}").st_ino)
        found["pins"] = ", ".join(sorted(path.name for path in pins.iterdir())) if pins.exists() else "none"
        return found

    def links(self) -> str:
        return self.pair.victim.run("ip", "link", "show", "v0").stdout


@pytest.fixture
def bench(netns_pair, tmp_path: Path) -> Iterator[XdpBench]:
    made = XdpBench(netns_pair, tmp_path)
    yield made
    with made.connect() as guardian:
        guardian.demand(Undo(all=True))
    made.close()


def xdp(match: Match, ttl: int = 60, **options) -> Rule:
    return Rule("", Kind.XDP, match, "drop by XDP", ttl, **options)


@pytest.mark.parametrize("family", [4, 6])
def test_passes_then_blocked_then_passes_again(bench: XdpBench, family: int) -> None:
    before = bench.state()
    path = bench.path(family)
    assert path.passes(wait_s=10)
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
        assert path.passes(wait_s=10)
    assert bench.state() == before


def at_tc(match: Match, ttl: int = 60, **options) -> Rule:
    return Rule("", Kind.TC, match, "drop at tc ingress", ttl, **options)


@pytest.mark.parametrize("foreign", [False, True], ids=["alone", "behind somebody else's XDP"])
@pytest.mark.parametrize("family", [4, 6])
def test_at_tc_passes_then_blocked_then_passes_again(bench: XdpBench, family: int, foreign: bool) -> None:
    if foreign:
        attach_foreign_xdp(bench.pair.victim, XDP_PASS)
    before = bench.state()
    path = bench.path(family)
    assert path.passes(wait_s=10)
    with bench.connect() as guardian:
        rule_id = apply(guardian, at_tc(Match(family=family, protocol=17, dport=PORT)))
        assert not path.passes()
        status = rules_of(guardian)[rule_id]
        assert status["packets"] == 1
        assert status["note"] == "tc ingress of v0"
        guardian.demand(Undo((rule_id,)))
        assert path.passes(wait_s=10)
    assert bench.state() == before


def test_rules_at_xdp_and_at_tc_come_and_go_by_themselves(bench: XdpBench) -> None:
    """Each hook has its own rules' program, and none when its last rule goes."""
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
        assert bench.path(6).passes(wait_s=10)
        guardian.demand(Undo((tc_rule,)))
    assert bench.state() == before


def test_a_foreign_program_that_leaves_takes_no_rule_with_it(bench: XdpBench) -> None:
    """With XDP taken, the one program at tc has the rules of both kinds, each packet counted once."""
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
        guardian.demand(Undo((xdp_rule,)))
        assert not bench.path(4).passes()
        assert bench.path(6).passes(wait_s=10)
        guardian.demand(Undo((tc_rule,)))
        assert bench.path(4).passes(wait_s=10)


@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
def test_a_rate_limit(bench: XdpBench, kind: Kind) -> None:
    before = bench.state()
    path = bench.path(4)
    assert path.passes(wait_s=10)
    rule = Rule("", kind, Match(protocol=17, dport=PORT), "limit", 60, limit=RateLimit(1, 20, prefix_v4=24))
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        assert 20 <= sum(path.passes() for _ in range(25)) <= 23  # and what a second or so gives back
        apply(guardian, xdp(Match(protocol=17, dport=9)))
        assert sum(path.passes() for _ in range(8)) <= 6  # a swap leaves the buckets as they are
        assert rules_of(guardian)[rule_id]["packets"] >= 4
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=10)
    assert bench.state() == before


MATCHES = {
    "source": (lambda b: Match(sources=(Prefix.parse(b.pair.attacker.ipv4),)), b"", True),
    "other source": (lambda b: Match(sources=(Prefix.parse("10.77.9.0/24"),)), b"", False),
    "destination": (lambda b: Match(destinations=(Prefix.parse("10.77.0.1"),), protocol=17), b"", True),
    "length": (lambda b: Match(protocol=17, ip_length=Range(100, 200)), bytes(100), True),
    "shorter": (lambda b: Match(protocol=17, ip_length=Range(100, 200)), b"", False),
    "ttl": (lambda b: Match(protocol=17, ttl=Range(64, 64)), b"", True),
    "payload at": (lambda b: Match(payload=(PayloadMatch(b"cde", 2),)), b"abcdefg", True),
    "payload elsewhere": (lambda b: Match(payload=(PayloadMatch(b"cde", 3),)), b"abcdefg", False),
    "payload anywhere": (lambda b: Match(payload=(PayloadMatch(b"attack"),)), b"x" * 90 + b"attack", True),
    "too deep": (lambda b: Match(payload=(PayloadMatch(b"attack"),)), b"x" * 125 + b"attack", False),
    "masked bits": (lambda b: Match(payload=(PayloadMatch(b"\x10\x20", 1, b"\xf0\x00"),)), b"a\x1fz", True),
    "other bits": (lambda b: Match(payload=(PayloadMatch(b"\x10\x20", 1, b"\xf0\x00"),)), b"a\x2fz", False),
    "name in any case": (
        lambda b: Match(payload=(PayloadMatch(b"\x04evil\x04test\x00", 12, None, "evil.test."),)),
        bytes(12) + b"\x04EvIl\x04tEST\x00",
        True,
    ),
    "name with its type": (
        lambda b: Match(payload=(PayloadMatch(b"\x04evil\x04test\0\0\x01", None, None, "evil.test."),)),
        bytes(12) + b"\x04evil\x04TEST\0\0\x01\0\x01",
        True,
    ),
    "another type": (
        lambda b: Match(payload=(PayloadMatch(b"\x04evil\x04test\0\0\x01", None, None, "evil.test."),)),
        bytes(12) + b"\x04evil\x04TEST\0\0\x1c\0\x01",
        False,
    ),
    "not a fragment": (lambda b: Match(fragment=True), b"", False),
}


def test_conditions(bench: XdpBench) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        for name, (match, payload, hits) in MATCHES.items():
            assert path.passes(payload, wait_s=10), name
            rule_id = apply(guardian, xdp(match(bench)), force=True)
            assert path.passes(payload, wait_s=0.15 if hits else 5) != hits, name
            guardian.demand(Undo((rule_id,)))
            assert path.passes(payload, wait_s=10), name


def _is_dropped(bench: XdpBench, guardian: GuardianClient, family: int, echo: int, rule_id: str) -> bool:
    """Send an echo that must not be answered; whether the rule has counted one by now."""
    assert not answers(bench, family, echo)
    return int(rules_of(guardian)[rule_id]["packets"]) >= 1


@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
def test_icmp_type_is_matched_and_neighbours_live(bench: XdpBench, kind: Kind, poll_until) -> None:
    """Neighbour discovery passes even a rule against all of ICMPv6: without it IPv6 would be cut."""
    path = bench.path(6)
    assert path.passes(wait_s=10)
    with bench.connect() as guardian:
        for family, echo in ((4, 8), (6, 128)):
            assert answers(bench, family, echo, wait_s=10)
            rule_id = apply(guardian, Rule("", kind, Match(family=family, icmp_type=echo), "drop", 60))
            poll_until(partial(_is_dropped, bench, guardian, family, echo, rule_id))
            guardian.demand(Undo((rule_id,)))
            assert answers(bench, family, echo, wait_s=10)
        apply(guardian, Rule("", kind, Match(family=6, protocol=58), "drop", 60), force=True)
        assert not answers(bench, 6, 128)
        for end in (bench.pair.attacker, bench.pair.victim):
            end.run("ip", "neighbour", "flush", "all")
        assert path.passes(wait_s=10)


def test_fragments(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        apply(guardian, xdp(Match(protocol=17, fragment=True)), force=True)
        assert not bench.path(4).passes(bytes(3000))
        assert not bench.path(6).passes(bytes(3000))
        assert bench.path(4).passes(b"whole", wait_s=10)


def test_behind_vlan_tags(bench: XdpBench, poll_until) -> None:
    """This kernel has no VLAN devices: frames are made by hand, and looked for by a packet socket."""
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
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                try:
                    if frame[-16:] in receiver.recv(2048):
                        return True
                except BlockingIOError:
                    time.sleep(0.005)
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


def test_allow_list_comes_first_and_is_followed(bench: XdpBench, poll_until) -> None:
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


@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
@pytest.mark.parametrize("family", [4, 6])
def test_ends_by_the_kernels_clock_without_any_process(
    bench: XdpBench, family: int, kind: Kind, poll_until
) -> None:
    path = bench.path(family)
    with bench.connect() as guardian:
        apply_at_once(guardian, replace(xdp(Match(protocol=17, dport=PORT), ttl=2), kind=kind))
    bench.kill_guardian()
    assert not path.passes()
    poll_until(path.passes)
    with bench.connect() as successor:
        assert rules_of(successor) == {}
        assert rules_of(successor, finished=True)["2"]["state"] == "expired"
    assert "xdp" not in bench.links()


def test_an_interface_made_anew_gets_the_rules_again(bench: XdpBench, poll_until) -> None:
    victim, attacker = bench.pair.victim, bench.pair.attacker
    with bench.connect() as guardian:
        rule_id = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert "xdp" in bench.links()
        victim.run("ip", "link", "del", "v0")
        peer = ("peer", "name", "a0", "netns", attacker.netns)
        victim.run("ip", "link", "add", "v0", "type", "veth", *peer)
        victim.run("ip", "address", "add", f"{victim.ipv4}/24", "dev", "v0")
        victim.run("ip", "link", "set", "v0", "up")
        attacker.run("ip", "address", "add", f"{attacker.ipv4}/24", "dev", "a0")
        attacker.run("ip", "link", "set", "a0", "up")
        assert bench.path(4).passes(wait_s=10)
        poll_until(lambda: "xdp" in bench.links())
        assert not bench.path(4).passes()
        victim.run("ip", "link", "set", "v0", "down")
        victim.run("ip", "link", "set", "v0", "name", "other0", "mtu", "1400", "up")
        assert not bench.path(4).passes()
        assert rules_of(guardian)[rule_id]["packets"] >= 2
        guardian.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=10)


def test_undo_all_sweeps_what_a_dead_namespace_left(bench: XdpBench, tmp_path: Path, poll_until) -> None:
    """A rule was confirmed, guardian and namespace went without taking it back."""
    (tmp_path / "other").mkdir()
    run = partial(subprocess.run, check=True)
    run(["ip", "netns", "add", f"{bench.netns}-gone"])
    number = os.stat(f"/run/netns/{bench.netns}-gone").st_ino
    options = {"run_directory": tmp_path / "other", "guardian_arguments": bench.arguments()}
    run(["ip", "-n", f"{bench.netns}-gone", "link", "set", "lo", "up"])
    run(["ip", "-n", f"{bench.netns}-gone", "link", "add", "v0", "up", "type", "veth", "peer", "name", "p0"])
    with client.connect(netns=f"{bench.netns}-gone", **options) as guardian:
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        pid = int(guardian.about["pid"])
    kill(pid)
    pins = BPFFS / "fwtop" / str(number)
    assert pins.exists()
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
        assert pins.exists()  # the namespace is there
        run(["ip", "netns", "del", f"{bench.netns}-gone"])
        poll_until(lambda: guardian.demand(Undo(all=True)) and not pins.exists())


def apply_at_once(guardian: GuardianClient, rule: Rule, confirm_seconds: int = 0) -> str:
    """Install a rule that was compiled before, so that its time is not over when a slow machine is done."""
    guardian.demand(Undo((apply(guardian, replace(rule, ttl_seconds=60)),)))
    return apply(guardian, rule, confirm_seconds)


def test_provisional_rule_is_taken_back_by_the_guardian(bench: XdpBench, poll_until) -> None:
    with bench.connect() as guardian:
        apply_at_once(guardian, xdp(Match(protocol=17, dport=PORT)), 1)
        assert not bench.path(4).passes()
        poll_until(bench.path(4).passes)


def test_provisional_rule_is_taken_back_by_the_kernel_a_kept_one_stays(bench: XdpBench, poll_until) -> None:
    with bench.connect() as guardian:
        kept = apply(guardian, xdp(Match(family=4, protocol=17, dport=PORT)), 30)
        guardian.demand(Keep(kept))
        apply_at_once(guardian, xdp(Match(family=6, protocol=17, dport=PORT)), 1)
        bench.kill_guardian()
    assert not bench.path(6).passes()
    poll_until(bench.path(6).passes)
    assert not bench.path(4).passes()


def test_a_successor_adopts_and_counts_go_on(bench: XdpBench, poll_until) -> None:
    path = bench.path(4)

    def counted(guardian: GuardianClient, packets: int) -> None:
        poll_until(lambda: rules_of(guardian)[first]["packets"] == packets)

    with bench.connect() as guardian:
        first = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
    bench.kill_guardian()
    assert not path.passes()
    with bench.connect() as successor:
        counted(successor, 2)
        second = apply(successor, xdp(Match(protocol=17, dport=PORT + 1)))
        assert not path.passes()
        counted(successor, 3)
        successor.demand(Undo((second,)))
        assert not path.passes()
        counted(successor, 4)
        successor.demand(Undo((first,)))
        assert path.passes(wait_s=10)


def test_no_packet_slips_through_while_rules_are_swapped(bench: XdpBench, poll_until) -> None:
    """While another rule comes and goes, every packet meets a program with the first."""
    path = bench.path(4)
    with bench.connect() as guardian:
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        over, sent = threading.Event(), 0

        def flood() -> None:
            nonlocal sent
            while not over.wait(0.0002):
                path.send()
                sent += 1

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for _ in range(3):
                other = apply(guardian, xdp(Match(protocol=17, dport=9)))
                guardian.demand(Undo((other,)))
        finally:
            over.set()
            thread.join()
        assert sent > 100
        poll_until(lambda: next(iter(rules_of(guardian).values()))["packets"] >= sent)
        assert next(iter(rules_of(guardian).values()))["packets"] == sent
    path.receiver.setblocking(False)
    with pytest.raises(BlockingIOError):
        path.receiver.recv(100)


def test_a_foreign_program_is_left_alone_and_tc_does_it(bench: XdpBench, tmp_path: Path) -> None:
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
        assert path.passes(wait_s=10)
        assert f"id {foreign}" in bench.links()
    finally:
        bench.pair.victim.run("ip", "link", "set", "dev", "v0", "xdp", "off")


def test_generic_where_the_driver_has_none(bench: XdpBench) -> None:
    """A bridge has no XDP of its own; the rule says what that costs."""
    put_behind_a_bridge(bench.pair.victim)
    path = bench.path(4)
    assert path.passes(wait_s=10)
    with bench.connect() as guardian:
        rule_id = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
        status = rules_of(guardian)[rule_id]
        assert "generic XDP on br0" in status["note"]
        assert status["packets"] == 1
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=10)


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


def test_what_cant_be_compiled_is_refused(bench: XdpBench) -> None:
    before = bench.state()
    with bench.connect() as guardian, pytest.raises(FwtopError, match="2048 bytes of the payload"):
        apply(guardian, xdp(Match(payload=(PayloadMatch(b"x", 2048),))))
    assert bench.state() == before


def test_plan_says_what_is_done(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        data = guardian.demand(Plan(xdp(Match(protocol=17, dport=PORT)).to_dict())).data
        assert data["refused"] is None
        assert any("bpf link create: XDP" in line for line in data["commands"])
        assert "xdp" not in bench.links()


def test_what_a_plan_compiled_is_not_compiled_again(bench: XdpBench, poll_until) -> None:
    length = random.Random().randrange(1000, 60_000)
    rule = xdp(Match(protocol=17, dport=PORT, ip_length=Range(0, length)))

    def kept() -> set[str]:
        """What is kept of programs that compare with this length: others' guardians compile, too."""
        found = set()
        for path in Path(SOCKET_DIRECTORY).glob("rules-*"):
            with contextlib.suppress(FileNotFoundError):  # only the latest few stay
                code = base64.b64decode(json.loads(path.read_text()))
                if {length, length + 1} & {number for (number,) in struct.iter_unpack("<4xi", code)}:
                    found.add(path.name)
        return found

    with bench.connect() as guardian:
        assert kept() == set()
        guardian.demand(Plan(rule.to_dict()))
        poll_until(kept)
        compiled = kept()
        apply(guardian, rule)
        assert kept() == compiled
        assert len(compiled) == 1
        assert not bench.path(4).passes()


INSTALL = ("intent", "compiled", "armed", "installed")
UNDO = ("undo", "disarmed", "unloaded", "undone")


@pytest.mark.parametrize("step", INSTALL)
def test_crash_while_installing(bench: XdpBench, step: str) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=step)
    with guardian, pytest.raises(FwtopError, match="ended before it answered"):
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
    with bench.connect() as successor:
        if step == "installed":
            assert not bench.path(4).passes()
            successor.demand(Undo(all=True))
        else:
            assert rules_of(successor) == {}
        assert bench.path(4).passes(wait_s=10)
    assert bench.state() == before


@pytest.mark.parametrize("step", UNDO)
def test_crash_while_undoing_one_of_two(bench: XdpBench, step: str) -> None:
    guardian = bench.connect(crash_at=step)
    with guardian:
        stays = apply(guardian, xdp(Match(family=6, protocol=17, dport=PORT)))
        gone = apply(guardian, xdp(Match(family=4, protocol=17, dport=PORT)))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo((gone,)))
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [stays]
        assert bench.path(4).passes(wait_s=10)
        assert not bench.path(6).passes()
