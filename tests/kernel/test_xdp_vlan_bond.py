"""Compiled rules for VLANs and bonds, attached to the interfaces below."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from guardian_bench import PORT, apply, rules_of
from msgspec.structs import replace
from test_xdp_watch import check, watch
from xdp_bench import XdpBench, xdp

from fwtop.model.protocol import Undo
from fwtop.model.rule import Match
from tests.kernel.conftest import Host, NetnsPair
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
RULE = Match(protocol=17, dport=PORT)
ABOVE = {"vlan": "v0.7", "qinq": "v0.7.8"}
BONDS = ("active-backup", "balance-xor", "802.3ad")  # these hand a program on to their members


def needs(kind: str) -> None:
    """Skip if the kernel has no such devices."""
    words = ["link", "add", "fwtop-try", "type", kind]
    words[2:2] = ["link", "lo"] if kind == "vlan" else []
    words += ["id", "7"] if kind == "vlan" else []
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=60, check=False)
    if "Unknown device type" in done.stderr:
        pytest.skip(f"this kernel has no {kind} devices")
    subprocess.run(["ip", "link", "delete", "fwtop-try"], capture_output=True, timeout=60, check=False)


def ip(host: Host, words: str) -> None:
    host.run("ip", *words.split())


def tag(host: Host, kind: str) -> None:
    """Create a VLAN on the host's interface, or a VLAN in a service provider's VLAN."""
    low = host.interface
    outer = "802.1ad" if kind == "qinq" else "802.1Q"
    ip(host, f"link add link {low} name {low}.7 type vlan protocol {outer} id 7")
    ip(host, f"link set {low}.7 up")
    if kind == "qinq":
        ip(host, f"link add link {low}.7 name {low}.7.8 type vlan id 8")
        ip(host, f"link set {low}.7.8 up")


def bond(pair: NetnsPair, mode: str) -> None:
    """Add a second veth pair and bond both on either side."""
    ip(pair.victim, f"link add v1 type veth peer name a1 netns {pair.attacker.netns}")
    for host in (pair.victim, pair.attacker):
        hashed = "xmit_hash_policy layer3+4" if mode in ("balance-xor", "802.3ad") else ""
        fast = "lacp_rate fast" if mode == "802.3ad" else ""
        ip(host, f"link add bond0 type bond mode {mode} miimon 50 {hashed} {fast}")
        for member in (host.interface, f"{host.interface[0]}1"):
            ip(host, f"link set {member} down")
            ip(host, f"link set {member} master bond0")
        ip(host, "link set bond0 up")


def onto(host: Host, interface: str, number: int) -> Host:
    """Give the upper interface its own addresses; returns the host with these."""
    made = replace(host, interface=interface, ipv4=f"10.78.0.{number}", ipv6=f"fd78::{number}")
    ip(made, f"address add {made.ipv4}/24 dev {interface}")
    ip(made, f"address add {made.ipv6}/64 dev {interface} nodad")
    return made


@pytest.fixture
def lay(netns_pair: NetnsPair, tmp_path: Path):
    """lay(kind): a bench whose packets pass a VLAN or a bond of that kind."""
    made: list[XdpBench] = []

    def build(kind: str) -> XdpBench:
        needs("vlan" if kind in ABOVE else "bond")
        if kind not in ABOVE:
            bond(netns_pair, kind)
        else:
            tag(netns_pair.victim, kind)
            tag(netns_pair.attacker, kind)
        sides = ((netns_pair.victim, 1), (netns_pair.attacker, 2))
        names = [ABOVE.get(kind, "bond0").replace("v0", host.interface) for host, _ in sides]
        pair = NetnsPair(*(onto(host, name, n) for (host, n), name in zip(sides, names, strict=True)))
        made.append(XdpBench(pair, tmp_path))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


def passes(bench: XdpBench, family: int) -> bool:
    """Wait for the first packet, for which a bond takes seconds."""
    path = bench.path(family)
    return any(path.passes(wait_s=0.5) for _ in range(20))


@pytest.mark.parametrize("kind", [*ABOVE, *BONDS])
def test_observed_blocked_and_undone(lay: Callable[[str], XdpBench], kind: str, poll_until) -> None:
    bench = lay(kind)
    assert passes(bench, 4)
    assert passes(bench, 6)
    before = lasting(bench)
    upper = bench.pair.victim.interface
    with bench.connect("console") as console, bench.connect() as guardian:
        watching = watch(bench, console, upper)
        _, counters = watching.send(20)
        assert counters.protocols["udp"][0] == 20
        rule_id = apply(guardian, xdp(RULE))
        below = f"v0, below {upper}" if kind in ABOVE else upper
        assert f"XDP in the driver of {below}" in rules_of(guardian)[rule_id]["note"]
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
        check(watching, rule_id)
        guardian.demand(Undo((rule_id,)))
        assert passes(bench, 4)
        assert passes(bench, 6)
        watching.source.close()
    poll_until(lambda: lasting(bench) == before)


def lasting(bench: XdpBench) -> dict[str, str]:
    """Return the state that undo must restore, without what a bond changes by itself."""
    state = bench.state()
    del state["link"]
    return state | {"xdp": str("prog/xdp" in bench.pair.victim.run("ip", "-d", "link").stdout)}


def send_from_many_ports(bench: XdpBench, count: int) -> None:
    """Send one datagram from each of `count` ports, which a bond spreads over its members."""
    with inside(bench.pair.attacker.netns):
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for sock in sockets:
        with sock:
            sock.sendto(b"spread", (bench.pair.victim.ipv4, PORT))


def received(bench: XdpBench, name: str) -> int:
    return int(bench.pair.victim.run("cat", f"/sys/class/net/{name}/statistics/rx_packets").stdout)


def test_every_member_of_a_bond_drops(lay: Callable[[str], XdpBench], poll_until) -> None:
    bench = lay("balance-xor")
    assert passes(bench, 4)
    with bench.connect("console") as console, bench.connect() as guardian:
        watching = watch(bench, console, "bond0")
        rule_id = apply(guardian, xdp(RULE))
        before = [received(bench, name) for name in ("v0", "v1")]
        send_from_many_ports(bench, 64)
        poll_until(lambda: rules_of(guardian)[rule_id]["packets"] >= 64)
        after = [received(bench, name) for name in ("v0", "v1")]
        assert all(now > then for now, then in zip(after, before, strict=True)), "both cables carried some"
        watching.source.close()


def test_a_bond_whose_active_member_goes_down(lay: Callable[[str], XdpBench]) -> None:
    bench = lay("active-backup")
    assert passes(bench, 4)
    with bench.connect("console") as console, bench.connect() as guardian:
        watching = watch(bench, console, "bond0")
        apply(guardian, xdp(RULE))
        ip(bench.pair.victim, "link set v0 down")
        assert not passes_within(bench, 10)
        guardian.demand(Undo(all=True))
        assert passes(bench, 4), "the other member carries the traffic"
        watching.source.close()


def passes_within(bench: XdpBench, tries: int) -> bool:
    return any(bench.path(4).passes(wait_s=0.1) for _ in range(tries))


@pytest.mark.parametrize("mode", ["active-backup", "broadcast"])
def test_a_member_that_joins_later_drops_too(lay: Callable[[str], XdpBench], mode: str, poll_until) -> None:
    """A broadcast bond takes no program, so each member has its own."""
    bench = lay(mode)
    ip(bench.pair.victim, "link set v1 nomaster")
    assert passes(bench, 4)
    with bench.connect("console") as console, bench.connect() as guardian:
        watching = watch(bench, console, "bond0")
        rule_id = apply(guardian, xdp(RULE))
        where = "v0, below bond0" if mode == "broadcast" else "bond0"
        assert f"XDP in the driver of {where}" in rules_of(guardian)[rule_id]["note"]
        ip(bench.pair.victim, "link set v1 down")
        ip(bench.pair.victim, "link set v1 master bond0")
        if mode == "broadcast":  # what a bond hands on is not shown with its members
            poll_until(lambda: "prog/xdp" in bench.pair.victim.run("ip", "link", "show", "v1").stdout)
        ip(bench.pair.victim, "link set v0 down")
        assert not passes_within(bench, 10)
        guardian.demand(Undo(all=True))
        assert passes(bench, 4), "the member that joined carries the traffic"
        watching.source.close()
