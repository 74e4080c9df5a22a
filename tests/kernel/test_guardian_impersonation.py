"""A flood forged in the name of the victim's resolver and gateway: lab scenario `resolver_impersonation`.

Before, during and after each kind of rule the real resolver answers; during it the flood is dropped.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fwtop.lab import network as net
from fwtop.lab.run import Lab
from fwtop.lab.traffic.answers import dns_wire
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from tests.kernel.conftest import Host, NetnsPair
from tests.kernel.guardian_bench import Bench, apply, rules_of
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
FORGED = (Prefix.parse(net.GATEWAY_4),)
UDP = Match(protocol=17, family=4)
PPS = 10_000
ALL, UDPS, SYNS = 0.9, 0.5, 0.3  # at least so much of the flood is for a rule: 60 % are UDP
RULES = {
    "ipset": (Rule("", Kind.IPSET, Match(sources=FORGED), "x", 600), ALL),
    "hashlimit": (Rule("", Kind.HASHLIMIT, UDP, "x", 600, limit=RateLimit(10, 10)), UDPS),
    "string": (Rule("", Kind.STRING, Match(family=4, payload=(PayloadMatch(b"flood:"),)), "x", 600), UDPS),
    "notrack": (Rule("", Kind.NOTRACK, Match(sources=FORGED), "x", 600), ALL),
    "nftables": (Rule("", Kind.NFTABLES, Match(sources=FORGED), "x", 600), ALL),
    "synproxy": (Rule("", Kind.SYNPROXY, Match(family=4, protocol=6, dport=80), "x", 600), SYNS),
    "xdp": (Rule("", Kind.XDP, Match(sources=FORGED), "x", 600), ALL),
    "xdp limit": (Rule("", Kind.XDP, UDP, "x", 600, limit=RateLimit(10, 10)), UDPS),
    "tc": (Rule("", Kind.TC, Match(sources=FORGED), "x", 600), ALL),
}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Bench]]:
    with Lab("resolver_impersonation") as lab:
        ends = (
            Host(lab.victim, net.VICTIM_INTERFACE, net.VICTIM_4, net.VICTIM_6),
            Host(lab.attacker, net.ATTACKER_INTERFACE, net.GATEWAY_4, net.GATEWAY_6),
        )
        bench = Bench(NetnsPair(*ends), tmp_path_factory.mktemp("guardian"))
        try:
            yield lab, bench
        finally:
            bench.close()
    assert not (Path("/etc/netns") / lab.victim).exists()


def resolves(lab: Lab, name: str, tries: int = 30) -> bool:
    """Ask the real resolver; as resolvers' clients do, again after a while."""
    with inside(lab.victim):
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    question = struct.pack("!6H", hash(name) & 0xFFFF, 0x0100, 1, 0, 0, 0) + dns_wire(name)
    with asking:
        asking.settimeout(1)
        for _ in range(tries):
            asking.sendto(question + struct.pack("!HH", 1, 1), (net.GATEWAY_4, net.PORT_DNS))
            try:
                return asking.recv(512)[:2] == question[:2]
            except TimeoutError:
                continue
    return False


@pytest.mark.one_each("hashlimit", "nftables", "synproxy", "xdp limit")
@pytest.mark.parametrize("kind", list(RULES))
def test_the_flood_is_dropped_and_the_resolver_answers(
    victim: tuple[Lab, Bench], kind: str, poll_until
) -> None:
    lab, bench = victim
    rule, share = RULES[kind]
    names = (f"name{number}.example" for number in itertools.count())
    with bench.connect() as guardian:
        lab.start_flood(PPS, seconds=120)
        try:
            assert resolves(lab, next(names)), "before"
            rule_id = apply(guardian, rule, force=True)
            before, hits = lab.arrived()[0], rules_of(guardian)[rule_id]["packets"]
            bench.pair.victim.run("ip", "neighbour", "flush", "dev", net.VICTIM_INTERFACE)
            assert all(resolves(lab, next(names)) for _ in range(20)), "during"
            poll_until(lambda: lab.arrived()[0] - before > 1000)
            arrived = lab.arrived()[0] - before
            poll_until(lambda: rules_of(guardian)[rule_id]["packets"] - hits >= share * arrived)
            assert resolves(lab, next(names)), "during"
            guardian.demand(Undo((rule_id,)))
            assert resolves(lab, next(names)), "after"
        finally:
            lab.stop()
