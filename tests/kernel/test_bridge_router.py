"""A machine that routes or bridges: what it counts, and which rules protect those behind it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from guardian_bench import Bench, apply

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Plan, Undo
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.conftest import Host, ip
from tests.kernel.observing import observing
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
PORT = 5300
SERVER = "10.78.2.2"
FORWARDERS = ("router", "bridge", "bridge with br_netfilter")


@dataclass
class Forwarder:
    """Attacker, the machine in the middle (the guardian's bench calls it victim), and a server."""

    kind: str
    attacker: Host
    victim: Host
    server: Host
    receiver: socket.socket = field(init=False)
    sender: socket.socket = field(init=False)
    serial: int = 0

    def __post_init__(self) -> None:
        with inside(self.server.netns):
            self.receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.receiver.bind((SERVER, PORT))
        with inside(self.attacker.netns):
            self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def passes(self, wait_s: float = 0.15) -> bool:
        self.serial += 1
        message = b"#%d" % self.serial
        self.sender.sendto(message, (SERVER, PORT))
        self.receiver.settimeout(wait_s)
        with contextlib.suppress(TimeoutError):
            while self.receiver.recv(2048) != message:
                pass
            return True
        return False


def wire(stem: str, kind: str) -> Forwarder:
    routed = kind == "router"
    far = "10.78.1" if routed else "10.78.2"
    attacker = Host(f"{stem}a", "a0", f"{far}.9", "")
    middle = Host(f"{stem}m", "out0", "10.78.2.1", "")
    server = Host(f"{stem}s", "s0", SERVER, "")
    for host in (attacker, middle, server):
        ip("netns", "add", host.netns)
        ip("-n", host.netns, "link", "set", "lo", "up")
    for port, end in (("out0", attacker), ("in0", server)):
        peer = ("type", "veth", "peer", "name", end.interface, "netns", end.netns)
        ip("-n", middle.netns, "link", "add", port, *peer)
        ip("-n", end.netns, "address", "add", f"{end.ipv4}/24", "dev", end.interface)
        ip("-n", end.netns, "link", "set", end.interface, "up")
        ip("-n", middle.netns, "link", "set", port, "up")
    inner = "in0" if routed else "br0"
    if routed:
        ip("-n", middle.netns, "address", "add", "10.78.1.1/24", "dev", "out0")
        middle.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    else:
        ip("-n", middle.netns, "link", "add", "br0", "type", "bridge")
        for port in ("out0", "in0"):
            ip("-n", middle.netns, "link", "set", port, "master", "br0")
        ip("-n", middle.netns, "link", "set", "br0", "up")
        shown = int(kind != "bridge")
        middle.run(
            "sysctl", "-qw", *(f"net.bridge.bridge-nf-call-{name}tables={shown}" for name in ("ip", "ip6"))
        )
    ip("-n", middle.netns, "address", "add", "10.78.2.1/24", "dev", inner)
    if routed:
        ip("-n", attacker.netns, "route", "add", "default", "via", "10.78.1.1")
        ip("-n", server.netns, "route", "add", "default", "via", "10.78.2.1")
    return Forwarder(kind, attacker, middle, server)


@pytest.fixture(scope="module", params=FORWARDERS)
def forwarder(request: pytest.FixtureRequest) -> Iterator[Forwarder]:
    stem = f"fwb{os.getpid()}-{FORWARDERS.index(request.param)}"
    try:
        made = wire(stem, request.param)
        with made.receiver, made.sender:
            yield made
    finally:
        for end in "ams":
            with contextlib.suppress(AssertionError):
                ip("netns", "delete", f"{stem}{end}")


@pytest.fixture(scope="module")
def guardian(forwarder: Forwarder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardianClient]:
    bench = Bench(forwarder, Path(tmp_path_factory.mktemp("guardian")))
    with bench.connect() as connected:
        yield connected
    bench.close()


def test_what_it_passes_on_is_counted_as_accepted_once(forwarder: Forwarder) -> None:
    assert forwarder.passes(3)
    with observing(forwarder.victim, ["out0", "in0"]) as observer:
        observer.ask("poll")
        for _ in range(50):
            assert forwarder.passes()
        answer = observer.ask("wait 50")
    assert answer["protocols"]["udp"][0] == 50
    assert answer["accepted"] == 50


def test_the_screen_is_told_what_netfilter_does_not_see(forwarder: Forwarder) -> None:
    with observing(forwarder.victim, ["out0"]) as observer:
        assert observer.ready["beside_netfilter"] == ([4, 6] if forwarder.kind == "bridge" else [])


@pytest.mark.parametrize("chain", ["FORWARD", "PREROUTING"])
def test_what_its_rules_drop_was_never_accepted(forwarder: Forwarder, chain: str) -> None:
    """By then a bridged packet has the bridge's or the other port's device, as one that was sent would."""
    table = "filter" if chain == "FORWARD" else "raw"
    rule = ("-p", "udp", "--dport", str(PORT), "-j", "DROP")
    assert forwarder.passes(3)
    with observing(forwarder.victim, ["out0", "in0"]) as observer:
        observer.ask("poll")
        for _ in range(5):
            assert forwarder.passes()
        forwarder.victim.run("iptables", "-t", table, "-I", chain, *rule)
        try:
            blocked = [not forwarder.passes(0.05) for _ in range(20)]
        finally:
            forwarder.victim.run("iptables", "-t", table, "-D", chain, *rule)
        answer = observer.ask("wait 25")
    sees = forwarder.kind != "bridge"  # whose netfilter is not asked
    assert blocked == [sees] * 20
    assert answer["accepted"] == (5 if sees else 25)
    drops = {name: count for name, count in answer["drops"].items() if name.startswith("netfilter/")}
    assert drops == ({"netfilter/NETFILTER_DROP/before": 20} if sees else {})


@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.NFTABLES, Kind.XDP, Kind.TC])
def test_a_rule_protects_those_behind_or_says_that_it_does_not(
    forwarder: Forwarder, guardian: GuardianClient, kind: Kind
) -> None:
    rule = Rule("", kind, Match(sources=(Prefix.parse(forwarder.attacker.ipv4),)), "block", 60)
    warnings = guardian.demand(Plan(rule.to_dict())).data["warnings"]
    told = any("passes packets on without netfilter" in line for line in warnings)
    assert forwarder.passes(3)
    rule_id = apply(guardian, rule)
    blind = kind is Kind.IPSET and forwarder.kind == "bridge"
    assert forwarder.passes() == blind
    assert told == blind
    guardian.demand(Undo((rule_id,)))
    assert forwarder.passes(3)
