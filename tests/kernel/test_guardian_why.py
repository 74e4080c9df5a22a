"""`fwtop why` names the true cause, each laid down for real while packets arrive."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from guardian_bench import PORT, VARIANTS, Bench, apply, inside, rules_of
from xdp_frames import ethernet, ipv4, udp

from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Status, Undo, Why
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.wire import send_frames

pytestmark = pytest.mark.kernel
UDP = 17


@contextmanager
def repeatedly(send: Callable[[], object]) -> Iterator[None]:
    """Send a few hundred packets a second while the block runs, ahead of all others: one second counts."""
    over = threading.Event()

    def run() -> None:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        while not over.wait(0.004):
            with suppress(ConnectionRefusedError):  # where nobody listens
                send()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def traffic(bench: Bench, family: int = 4, payload: bytes = b"") -> Iterator[None]:
    """Send a few hundred datagrams a second from the attacker while the block runs."""
    path = bench.path(family)
    path.passes(payload)
    with repeatedly(lambda: path.send(payload)):
        yield


def why(guardian, rule_id: str) -> str:
    return "\n".join(guardian.demand(Why(rule_id)).data["sentences"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_working_rule_says_what_it_matched(bench: Bench, variant: str) -> None:
    for program in (f"iptables-{variant}", f"ip6tables-{variant}"):
        bench.pair.victim.run(program, "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "ACCEPT")
    with bench.connect() as guardian, traffic(bench):
        rule_id = apply(guardian, bench.block_rule(4))
        said = why(guardian, rule_id)
    assert said.startswith(f"rule {rule_id} works: it matched ")
    assert f"most from {bench.attacker(4)}" in said
    assert said.count("\n") == 0


@pytest.mark.one_each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", ["line", "chain"])
def test_rule_above_that_takes_the_packets_is_named(bench: Bench, variant: str, how: str) -> None:
    tool = f"iptables-{variant}"
    bench.pair.victim.run(tool, "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "ACCEPT")
    with bench.connect() as guardian, traffic(bench):
        rule_id = apply(guardian, bench.block_rule(4))
        target = "ACCEPT"
        if how == "chain":
            bench.pair.victim.run(tool, "-t", "raw", "-N", "THEIRS")
            bench.pair.victim.run(tool, "-t", "raw", "-A", "THEIRS", "-p", "udp", "-j", "ACCEPT")
            target = "THEIRS"
        bench.pair.victim.run(tool, "-t", "raw", "-I", "PREROUTING", "-p", "udp", "-j", target)
        said = why(guardian, rule_id)
    assert "takes packets first: '-A PREROUTING -p udp" in said
    assert "just now" in said


def test_foreign_nft_chain_is_named(bench: Bench) -> None:
    with bench.connect() as guardian, traffic(bench):
        rule_id = apply(guardian, bench.block_rule(4))
        for words in (
            "add table inet theirs",
            "add chain inet theirs early { type filter hook prerouting priority -400 ; }",
            "add rule inet theirs early udp dport 5353 counter drop",
        ):
            bench.pair.victim.run("nft", words)
        said = why(guardian, rule_id)
    assert "inet theirs early (prerouting, priority -400) sees packets before fwtop's rules" in said
    assert "udp dport 5353" in said


def test_other_iptables_variant_is_named(bench: Bench) -> None:
    with bench.connect() as guardian, traffic(bench):
        assert guardian.about["variant"] == "nft"
        rule_id = apply(guardian, bench.block_rule(4))
        tool = ("iptables-legacy", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "DROP")
        bench.pair.victim.run(*tool)  # registered last, so it is called first
        said = why(guardian, rule_id)
    assert "the other iptables variant (legacy)" in said


def test_family_that_the_rule_lacks_is_named(bench: Bench) -> None:
    with bench.connect() as guardian, traffic(bench, 6):
        said = why(guardian, apply(guardian, bench.block_rule(4)))
    assert "the rule is about IPv4" in said
    assert "IPv6 brought" in said


def test_fragments_are_named(bench: Bench) -> None:
    rule = Rule(
        "", Kind.IPSET, Match(sources=bench.block_rule(4).match.sources, protocol=UDP, dport=9), "x", 60
    )
    with bench.connect() as guardian, traffic(bench, 4, b"x" * 4000):
        said = why(guardian, apply(guardian, rule))
    assert "later fragments carry no ports" in said


def test_emptied_set_and_flushed_chain_are_named(bench: Bench, poll_until: Callable[..., object]) -> None:
    def pps() -> float:
        return float(rules_of(guardian)[rule_id]["pps"])

    with bench.connect() as guardian, traffic(bench):
        rule_id = apply(guardian, bench.block_rule(4))
        poll_until(lambda: pps() > 0)
        bench.pair.victim.run("ipset", "flush", f"fwtop-{rule_id}-4")
        said = why(guardian, rule_id)
        assert f"set fwtop-{rule_id}-4 is empty: somebody deleted elements; 'fwtop repair {rule_id}'" in said
        bench.pair.victim.run("iptables-nft", "-t", "raw", "-F", "FWTOP-SOURCES")
        assert "its line is gone from chain FWTOP-SOURCES (IPv4)" in why(guardian, rule_id)
        poll_until(lambda: pps() == 0)


def test_native_rules_in_table_raw_are_no_damage(bench: Bench) -> None:
    """`iptables-save` refuses the whole table then: what it does not list is not gone."""
    with bench.connect() as guardian, traffic(bench):
        rule_id = apply(guardian, bench.block_rule(4))
        native = f"nft insert rule ip raw PREROUTING udp dport {PORT}"
        bench.pair.victim.run(*native.split(), "accept")  # without a counter
        assert "a rule above fwtop's lets packets pass first" in why(guardian, rule_id)
        bench.pair.victim.run(*native.split(), "notrack", "accept")
        said = why(guardian, rule_id)
    assert "gone" not in said
    assert "2 rules come before fwtop's in table raw (IPv4), which holds native nftables rules" in said


def test_allow_listed_sender_is_named(bench: Bench) -> None:
    """An operator who tries a rule from the own machine is never matched."""
    bench.allow = f"{bench.attacker(4)}\n"
    rule = Rule("", Kind.NOTRACK, Match(protocol=UDP, dport=PORT, family=4), "x", 600)
    with bench.connect() as guardian, traffic(bench):
        said = why(guardian, apply(guardian, rule))
    assert "the allow-list let" in said


def test_vlan_without_an_interface_is_named(bench: Bench) -> None:
    header = bytes.fromhex("ffffffffffff 020000000001 8100 0005 0800")  # tag 5 before IPv4
    with inside(bench.pair.attacker.netns):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind(("a0", 0))
    with wire, repeatedly(lambda: wire.send(header + bytes(60))), bench.connect() as guardian:
        said = why(guardian, apply(guardian, bench.block_rule(4)))
    assert "v0 received" in said
    assert "VLAN-tagged without an interface here" in said


def test_other_namespace_and_other_chain_are_named(bench: Bench) -> None:
    """Traffic for the attacker's side: here it is quiet, and a process lives where it is not."""
    rule = Rule("", Kind.IPSET, Match(sources=bench.block_rule(6).match.sources), "x", 600)
    with inside(bench.pair.attacker.netns):
        witness = subprocess.Popen(["sleep", "600"])
    try:
        with bench.connect() as guardian:
            rule_id = apply(guardian, rule)
            bench.pair.victim.run(
                "iptables-nft", "-A", "INPUT", "-p", "udp", "--dport", str(PORT), "-j", "DROP"
            )
            with traffic(bench):
                said = why(guardian, rule_id)
            assert "IPv4 brought" in said
            bench.pair.attacker.run("ip", "link", "add", "x0", "type", "veth", "peer", "name", "x1")
            for link, address in (("x0", "10.99.0.1/24"), ("x1", "10.98.0.1/24")):
                bench.pair.attacker.run("ip", "address", "add", address, "dev", link)
                bench.pair.attacker.run("ip", "link", "set", link, "up")
            bench.pair.attacker.run(
                "ip", "neigh", "add", "10.99.0.9", "lladdr", "02:00:00:00:00:09", "dev", "x0"
            )
            with inside(bench.pair.attacker.netns):
                out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with out, repeatedly(lambda: out.sendto(b"x", ("10.99.0.9", 9))):
                said = why(guardian, rule_id)
    finally:
        witness.kill()
        witness.wait()
    assert "other network namespaces more" in said
    assert bench.pair.attacker.netns in said


def test_drop_further_down_is_named(bench: Bench) -> None:
    rule = Rule("", Kind.NOTRACK, Match(protocol=UDP, dport=9), "x", 600)
    bench.pair.victim.run("iptables-nft", "-A", "INPUT", "-p", "udp", "--dport", str(PORT), "-j", "DROP")
    with bench.connect() as guardian, traffic(bench):
        said = why(guardian, apply(guardian, rule))
    assert "none fits its conditions" in said
    assert "meanwhile filter INPUT dropped" in said


def test_xdp_rule_says_what_it_matched_and_where_it_is_not(bench: Bench) -> None:
    rule = Rule("", Kind.XDP, Match(protocol=UDP, dport=PORT), "x", 600)
    with bench.connect() as guardian, traffic(bench):
        rule_id = apply(guardian, rule)
        try:
            said = why(guardian, rule_id)
            assert said.startswith(f"rule {rule_id} works: it matched ")
            assert "contradict themselves" not in said
            victim, attacker = bench.pair.victim, bench.pair.attacker
            send_frames(attacker, ethernet(ipv4(udp(9, PORT, b"", length=7), UDP), 0x0800), times=3)
            victim.run(*f"ip link add v1 type veth peer name a1 netns {attacker.netns}".split())
            for host, link, address in ((victim, "v1", "10.78.0.1/24"), (attacker, "a1", "10.78.0.2/24")):
                host.run("ip", "address", "add", address, "dev", link)
                host.run("ip", "link", "set", link, "up")
            bench.path(4).sender.connect(("10.78.0.1", PORT))
            said = why(guardian, rule_id)
        finally:
            guardian.demand(Undo(all=True))
    assert "none in the last 1 s" in said
    assert "v1 received" in said
    assert "carries no XDP program" in said
    assert "v0 received" not in said
    assert "3 packets since the first compiled rule" in said


@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC, Kind.NFTABLES])
def test_own_rule_of_an_earlier_layer_is_named_not_its_program(bench: Bench, kind: Kind) -> None:
    early = Rule("", kind, Match(protocol=UDP, dport=PORT), "x", 600)
    with bench.connect() as guardian, traffic(bench):
        behind = apply(guardian, bench.block_rule(4))
        before = apply(guardian, early)
        try:
            assert why(guardian, before).startswith(f"rule {before} works: it matched ")
            said = why(guardian, behind)
        finally:
            guardian.demand(Undo(all=True))
    assert f"rule {before} ({kind.value}) took" in said
    assert "an XDP program (id" not in said


def test_quiet_rule_at_netdev_ingress_names_the_family_and_the_chain_before(bench: Bench) -> None:
    with bench.connect() as guardian, traffic(bench, 6):
        rule_id = apply(
            guardian, Rule("", Kind.NFTABLES, Match(family=4, protocol=UDP, dport=PORT), "x", 600)
        )
        for words in (
            "add table netdev theirs",
            'add chain netdev theirs early { type filter hook ingress device "v0" priority -600 ; }',
            "add rule netdev theirs early udp dport 7 counter drop",
        ):
            bench.pair.victim.run("nft", words)
        said = why(guardian, rule_id)
    assert "IPv6 brought" in said
    assert "netdev theirs early (ingress, priority -600) sees packets before" in said


def test_rule_that_is_over_or_unknown(bench: Bench) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(4))
        guardian.demand(Undo((rule_id,)))
        assert "is over, reverted: undone; it matched 0 packets" in why(guardian, rule_id)
        for unknown in ("99", "x", "9" * 40):
            with pytest.raises(FwtopError, match="there is no rule"):
                why(guardian, unknown)


def test_others_are_answered_while_it_watches(bench: Bench) -> None:
    with bench.connect() as asking, bench.connect() as other:
        rule_id = apply(asking, bench.block_rule(4))
        asker = threading.Thread(target=why, args=(asking, rule_id))
        asker.start()
        answered = 0
        while asker.is_alive():
            other.demand(Status())
            answered += 1
    assert answered > 10  # a few may have come before the question or after its answer
