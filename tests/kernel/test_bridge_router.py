"""A machine that routes or bridges: what it counts, and which rules protect those behind it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from guardian_bench import Bench, apply

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Plan, Undo
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.forwarding_bench import FORWARDERS, PORT, Forwarder, address, wired
from tests.kernel.observing import observing, samples

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module", params=FORWARDERS)
def forwarder(request: pytest.FixtureRequest) -> Iterator[Forwarder]:
    with wired(request.param, "b") as made:
        yield made


@pytest.fixture(scope="module")
def guardian(forwarder: Forwarder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardianClient]:
    bench = Bench(forwarder, Path(tmp_path_factory.mktemp("guardian")))
    with bench.connect() as connected:
        yield connected
    bench.close()


def accepted(answer: dict) -> float:
    """Return how many datagrams were accepted; IPv6 talks to itself meanwhile."""
    return sum(row["weight"] for row in samples(answer, hook="ACCEPTED", protocol=17))


@pytest.mark.one_each
@pytest.mark.parametrize("family", [4, 6])
def test_what_it_passes_on_is_counted_as_accepted_once(forwarder: Forwarder, family: int) -> None:
    assert forwarder.passes(30, family)
    with observing(forwarder.victim, ["out0", "in0"]) as observer:
        observer.ask("poll")
        for _ in range(50):
            assert forwarder.passes(family=family)
        answer = observer.ask("wait 50")
    assert answer["protocols"]["udp"][0] == 50
    assert accepted(answer) == 50 <= answer["accepted"]


def test_the_screen_is_told_what_netfilter_does_not_see(forwarder: Forwarder) -> None:
    with observing(forwarder.victim, ["out0"]) as observer:
        assert observer.ready["beside_netfilter"] == ([4, 6] if forwarder.kind == "bridge" else [])


@pytest.mark.one_each(
    "router-FORWARD-4",
    "router-PREROUTING-6",
    "bridge-FORWARD-6",
    "bridge with br_netfilter-FORWARD-6",
    "bridge with br_netfilter-PREROUTING-4",
)
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("chain", ["FORWARD", "PREROUTING"])
def test_what_its_rules_drop_was_never_accepted(forwarder: Forwarder, chain: str, family: int) -> None:
    """By then a bridged packet has the bridge's or the other port's device, as one that was sent would."""
    table = "filter" if chain == "FORWARD" else "raw"
    program = "iptables" if family == 4 else "ip6tables"
    rule = ("-p", "udp", "--dport", str(PORT), "-j", "DROP")
    assert forwarder.passes(30, family)
    with observing(forwarder.victim, ["out0", "in0"]) as observer:
        observer.ask("poll")
        for _ in range(5):
            assert forwarder.passes(family=family)
        forwarder.victim.run(program, "-t", table, "-I", chain, *rule)
        try:
            blocked = [not forwarder.passes(0.05, family) for _ in range(20)]
        finally:
            forwarder.victim.run(program, "-t", table, "-D", chain, *rule)
        answer = observer.ask("wait 25")
    sees = forwarder.kind != "bridge"  # whose netfilter is not asked
    assert blocked == [sees] * 20
    assert accepted(answer) == (5 if sees else 25) <= answer["accepted"]
    drops = {name: count for name, count in answer["drops"].items() if name.startswith("netfilter/")}
    assert drops == ({"netfilter/NETFILTER_DROP/before": 20} if sees else {})


@pytest.mark.one_each(
    "router-ipset-4",
    "router-xdp-6",
    "bridge-ipset-6",
    "bridge-nftables-4",
    "bridge-tc-6",
    "bridge with br_netfilter-ipset-6",
    "bridge with br_netfilter-nftables-4",
)
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.NFTABLES, Kind.XDP, Kind.TC])
def test_a_rule_protects_those_behind_or_says_that_it_does_not(
    forwarder: Forwarder, guardian: GuardianClient, kind: Kind, family: int
) -> None:
    rule = Rule("", kind, Match(sources=(Prefix.parse(address(forwarder.attacker, family)),)), "block", 600)
    warnings = guardian.demand(Plan(rule.to_dict())).data["warnings"]
    told = any("passes packets on without netfilter" in line for line in warnings)
    assert forwarder.passes(30, family)
    rule_id = apply(guardian, rule)
    blind = kind is Kind.IPSET and forwarder.kind == "bridge"
    assert forwarder.passes(family=family) == blind
    assert told == blind
    guardian.demand(Undo((rule_id,)))
    assert forwarder.passes(30, family)


@pytest.mark.one_each("bridge")
def test_an_ipv6_attack_on_those_behind_is_named_and_ended_by_what_is_proposed(
    forwarder: Forwarder,
) -> None:
    """On a bridge without br_netfilter, too: there rules belong to the ports."""
    target, stop = (address(forwarder.server, 6), PORT), threading.Event()
    netns = ("--netns", forwarder.victim.netns)

    def flood() -> None:
        while not stop.wait(0.01):
            for _ in range(40):
                forwarder.senders[6].sendto(bytes(400), target)

    def fwtop(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fwtop", *words, *netns], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    sender = threading.Thread(target=flood)
    sender.start()
    try:
        watched = ("-i", "out0", "-i", "in0", "--seconds", "4", "--no-store", "--json")
        seen = json.loads(fwtop("snapshot", *watched))
    finally:
        stop.set()
        sender.join()
    assert any(attack["kind"] == "udp_flood" for attack in seen["attacks"])
    kinds = {proposal["kind"] for proposal in seen["proposals"]}
    assert "xdp" in kinds
    if forwarder.kind == "bridge":
        assert not kinds & {"ipset", "hashlimit", "string", "notrack"}
    first = next(item for item in seen["proposals"] if item["kind"] == "xdp" and "apply" not in item["fwtop"])
    words = shlex.split(first["fwtop"])[1:]
    assert forwarder.flood_passes(6)
    fwtop(*words, "--yes")
    try:
        assert not forwarder.flood_passes(6)
    finally:
        fwtop("undo", "--all")
    assert forwarder.flood_passes(6)
