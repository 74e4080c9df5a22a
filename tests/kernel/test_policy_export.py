"""Exports of a policy: loaded where there is no fwtop, they decide about each packet as fwtop does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from guardian_bench import Bench
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Undo
from fwtop.policy.document import Policy, read
from fwtop.policy.exports import write
from fwtop.policy.live import Live
from fwtop.policy.transaction import commit
from fwtop.policy.versions import Versions
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
POLICY = """
schema = 1
[list.office]
entries = ["198.51.100.0/24", "198.51.100.7", "2001:db8:7::/48"]
[list.bad]
entries = ["203.0.113.0/24", "2001:db8:bad::/48"]
[list.narrow]
entries = ["192.0.2.9:80/tcp", "[2001:db8:1::9]:80-81/udp"]
[[block]]
list = "narrow"
[[port]]
service = ["443/tcp", "53/udp"]
acl = "office"
[[port]]
service = ["5432/tcp", "5432/udp"]
level = "closed"
strict = true
[[port]]
service = "8080/tcp"
level = "closed"
priority = 5
[[port]]
service = "8080/tcp"
level = "open"
priority = 10
family = 4
[[block]]
list = "bad"
[[limit]]
proto = "udp"
dport = 999
per = 24
rate = "1/s"
burst = 3
[[limit]]
dport = 9090
per = 32
connections = 2
[[signature]]
hex = "deadbeef"
offset = 4
proto = "udp"
dport = 777
"""
ANYWHERE = '[[signature]]\nstring = "anywhere"\nproto = "udp"\ndport = 777\n'
ALLOWED = "203.0.113.77"  # on the allow-list and on the list of bad ones
SOURCES = {
    4: ("198.51.100.9", "203.0.113.9", "192.0.2.9", ALLOWED),
    6: ("2001:db8:7::9", "2001:db8:bad::9", "2001:db8:1::9"),
}
SERVICES = (443, 53, 5432, 8080, 777, 9090, 80)
KNOWN = {4: 4444, 6: 4446}  # the clients' ports of conversations that the service has answered
LAST = 6  # a port that no rule is about
_PROBE = """
table inet probe {
  set seen { type inet_proto . inet_service . inet_service; flags dynamic; size 65535; }
  chain c {
    type filter hook prerouting priority 100;
    meta l4proto { 6, 17 } add @seen { meta l4proto . th sport . th dport };
  }
}
"""


@pytest.fixture
def bench(netns_pair, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(netns_pair, tmp_path)
    yield made
    made.close()


def mac(bench: Bench, host: object) -> str:
    shown = bench.pair.victim.run("ip", "-j", "link", "show", bench.pair.victim.interface).stdout
    return str(json.loads(shown)[0]["address"])


def frames(bench: Bench) -> list[bytes]:
    """Return packets to try: each has a source port of its own, so that it can be told from the others."""
    head = Ether(dst=mac(bench, bench.pair.victim), src="02:00:00:00:00:01")
    victim = {4: bench.pair.victim.ipv4, 6: bench.pair.victim.ipv6}
    attacker = {4: bench.pair.attacker.ipv4, 6: bench.pair.attacker.ipv6}
    port = 10_000
    made = []
    for family in (4, 6):
        ip = IP if family == 4 else IPv6
        for source, service in product(SOURCES[family], SERVICES):
            kinds = [
                TCP(flags="S"),
                TCP(flags="A"),
                UDP() / Raw(b"plain text"),
                UDP() / Raw(b"1234\xde\xad\xbe\xef"),
            ]
            for layer in kinds:
                port += 1
                layer.sport, layer.dport = port, service
                made.append(head / ip(src=source, dst=victim[family]) / layer)
        for number in range(10):  # of one /24 or /64, above its limit
            layer = UDP(sport=20_000 + 100 * family + number, dport=999)
            made.append(head / ip(src=SOURCES[family][2], dst=victim[family]) / layer)
        made.append(head / ip(src=attacker[family], dst=victim[family]) / UDP(sport=KNOWN[family], dport=53))
    made.append(head / IP(src=SOURCES[4][2], dst=victim[4]) / UDP(sport=LAST, dport=LAST))
    return [bytes(frame) for frame in made]


def verdicts(bench: Bench, tried: list[bytes], poll_until) -> set[tuple[int, int, int]]:
    """Send packets, and return protocol, source port and port of those that pass."""
    victim, attacker = bench.pair.victim, bench.pair.attacker
    victim.run("nft", _PROBE)
    for kind, own, peer in (
        (socket.AF_INET, victim.ipv4, (attacker.ipv4, KNOWN[4])),
        (socket.AF_INET6, victim.ipv6, (attacker.ipv6, KNOWN[6])),
    ):
        with inside(victim.netns):
            service = socket.socket(kind, socket.SOCK_DGRAM)
        with service:
            service.bind((own, 53))
            service.sendto(b"answer", peer)
    with inside(attacker.netns):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind((attacker.interface, 0))
    with wire:
        for frame in tried:
            wire.send(frame)

    def seen() -> set[tuple[int, int, int]]:
        listed = json.loads(victim.run("nft", "-j", "-n", "list", "set", "inet", "probe", "seen").stdout)
        elements = next(item["set"] for item in listed["nftables"] if "set" in item).get("elem", ())
        return {tuple(map(int, item["concat"])) for item in elements}

    poll_until(lambda: (17, LAST, LAST) in seen())
    found = seen()
    victim.run("nft", "delete", "table", "inet", "probe")
    return found


def load(bench: Bench, directory: Path, policy: Policy, format: str) -> None:
    target = directory / ("x" if format == "iptables" else f"policy.{format}")
    write(policy, "policy.toml", format, target, directory / "allow")
    run = bench.pair.victim.run
    if format == "nft":
        run("nft", "-f", str(target))
        run("nft", "-f", str(target))  # again: it takes its own place
    elif format == "sh":
        run(str(target))
        run(str(target))
    else:
        for command, suffix in (
            ("ipset restore", "ipset"),
            ("iptables-restore --noflush", "iptables"),
            ("ip6tables-restore --noflush", "ip6tables"),
        ):
            run("sh", "-c", f"{command} < {target}/policy.{suffix}")


def test_every_export_decides_as_fwtop_does(bench: Bench, tmp_path: Path, poll_until) -> None:
    bench.allow = f"{ALLOWED}\n"
    (tmp_path / "policy.toml").write_text(POLICY)
    policy, tried = read(tmp_path / "policy.toml"), frames(bench)
    nothing = verdicts(bench, tried, poll_until)
    assert len(nothing) == len(tried)
    with bench.connect() as guardian:
        commit(Live(guardian), Versions("x", tmp_path / "v"), policy, "x", force=False)
        live = verdicts(bench, tried, poll_until)
        guardian.demand(Undo(all=True))
    assert len(tried) / 4 < len(live) < len(tried) * 3 / 4
    assert sum(service == 999 for _, _, service in live) == 6, "three of each family are within the limit"
    assert {(17, port, 53) for port in KNOWN.values()} <= live
    before = bench.state()
    for format in ("nft", "iptables", "sh"):
        load(bench, tmp_path, policy, format)
        assert verdicts(bench, tried, poll_until) == live, format
        if format == "nft":
            bench.pair.victim.run("nft", "delete", "table", "inet", "exported-policy")
        else:  # the script takes out what it or the three files put in
            write(policy, "x", "sh", tmp_path / "policy.sh", tmp_path / "allow")
            bench.pair.victim.run(str(tmp_path / "policy.sh"), "remove")
        assert verdicts(bench, tried, poll_until) == nothing
    assert bench.state()["ipset"] == before["ipset"]


def test_what_nftables_cannot_say_is_refused_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY + ANYWHERE)
    policy, target = read(tmp_path / "policy.toml"), tmp_path / "out.nft"
    with pytest.raises(FwtopError, match=r"can't say 'drop UDP to port 777 .*nothing was written"):
        write(policy, "x", "nft", target, tmp_path / "allow")
    assert not list(tmp_path.glob("out*"))
    with pytest.raises(FwtopError, match="name a directory"):
        write(policy, "x", "iptables", None, tmp_path / "allow")
