"""The figures that head the screen, and the attacks' own, against the victim's counters and the clients'."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench, apply, inside, rules_of
from msgspec import Struct, field

from fwtop.client.discovery import GuardianClient
from fwtop.console.live import LiveSession
from fwtop.kernel.procfs import parse_paired, parse_single
from fwtop.lab import network as net
from fwtop.lab.run import Lab
from fwtop.live.connections import TcpServiceMeter
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, Rule
from fwtop.model.traffic.session import flow_of
from fwtop.model.traffic.snapshot import Incident, Snapshot
from tests.conftest import poll_until_true
from tests.kernel import watching
from tests.kernel.conftest import Host, NetnsPair

pytestmark = pytest.mark.kernel
PPS, SECONDS = 25_000, 3.0
ACCEPTED = f"""table inet truth {{
    counter accepted {{ }}
    chain last {{
        type filter hook input priority 32000
        iifname "{net.VICTIM_INTERFACE}" counter name accepted
    }}
}}
"""


class Watched(Struct):
    """A lab that fwtop watches, and all that arrived since its start: neither it nor the clients work yet."""

    lab: Lab
    session: LiveSession
    guardian: GuardianClient
    service: TcpServiceMeter
    completed: list[float] = field(default_factory=list)  # handshakes, at each look: its window moves on

    def flood(self) -> Snapshot:
        """Flood with clients at work; return all of it once the last packet is through."""
        self.lab.phase("during")
        self.lab.start_flood(PPS, seconds=SECONDS)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self._within(self.session.observe)
            time.sleep(0.2)
        self.lab.stop()
        self.lab.pause_clients()
        shown = poll_until_true(self._told_all)
        assert isinstance(shown, Snapshot)
        return shown

    def _told_all(self) -> Snapshot | None:
        """Look until rules' counters, which the guardian reads once a second, are told as they are."""
        shown = self._within(self.session.tick)
        if shown.tcp is not None:
            self.completed.append(shown.tcp.handshakes_per_s * self.service_seconds())
        told = {status.rule.id: status.packets for status in shown.mitigations}
        return shown if self.lab.under_way() == 0 and told == self._counted() else None

    def _within(self, action: Any) -> Any:
        with inside(self.lab.victim):
            return action()

    def in_rules(self) -> dict[str, int]:
        """Packets by rule, once the guardian, which counts them once a second, has counted all."""
        counted, before = self._counted(), None
        for _ in range(20):
            if counted == before:
                break
            time.sleep(1.5)
            counted, before = self._counted(), counted
        return counted

    def _counted(self) -> dict[str, int]:
        return {rule_id: int(item["packets"]) for rule_id, item in rules_of(self.guardian).items()}

    def accepted(self) -> int:
        """Packets that passed all of the victim's own rules."""
        command = ("nft", "-j", "list", "counter", "inet", "truth", "accepted")
        found = subprocess.run(
            ["ip", "netns", "exec", self.lab.victim, *command], capture_output=True, check=True, timeout=60
        )
        return int(json.loads(found.stdout)["nftables"][1]["counter"]["packets"])

    def delivered(self) -> int:
        """Segments, datagrams and messages that came to TCP, UDP and ICMP."""
        with inside(self.lab.victim):
            four = parse_paired(Path("/proc/thread-self/net/snmp").read_text())
            six = parse_single(Path("/proc/thread-self/net/snmp6").read_text())
        udp = sum(four["Udp"][name] for name in ("InDatagrams", "NoPorts", "InErrors"))
        udp += sum(six[f"Udp6{name}"] for name in ("InDatagrams", "NoPorts", "InErrors"))
        return four["Tcp"]["InSegs"] + udp + four["Icmp"]["InMsgs"] + six["Icmp6InMsgs"]

    def service_seconds(self) -> float:
        """Of the TCP counters, which on a busy machine are read some time after the packets' counters."""
        readings = self.service._readings
        return readings[-1].at - readings[0].at

    def handshakes(self) -> int:
        return int(self.lab.results()["handshakes"])


@contextlib.contextmanager
def watched(scenario: str, directory: Path, *rules: Rule) -> Iterator[Watched]:
    with Lab(scenario) as lab:
        victim = Host(lab.victim, net.VICTIM_INTERFACE, net.VICTIM_4, net.VICTIM_6)
        attacker = Host(lab.attacker, net.ATTACKER_INTERFACE, net.GATEWAY_4, net.GATEWAY_6)
        bench = Bench(NetnsPair(victim, attacker), directory)
        subprocess.run(
            ["ip", "netns", "exec", lab.victim, "nft", "-f", "-"],
            input=ACCEPTED,
            text=True,
            check=True,
            timeout=60,
        )
        service = TcpServiceMeter()
        try:
            with bench.connect() as guardian:
                lab.pause_clients()
                for rule in rules:
                    apply(guardian, rule, force=True)
                with watching.watched(bench, service) as session:
                    yield Watched(lab, session, guardian, service)
                guardian.demand(Undo(all=True))
        finally:
            bench.close()


def rule(kind: Kind, **match: Any) -> Rule:
    return Rule("", kind, Match(**match), "of the test", 600)


SYN = rule(Kind.XDP, protocol=6, dport=80, tcp_flags=(18, 2), ip_length=Range(40, 40))


@pytest.mark.one_each("syn_flood dropped")
@pytest.mark.parametrize(
    ("scenario", "rules"),
    [("syn_flood", ()), ("syn_flood", (SYN,)), ("udp_flood", ()), ("mixed_vectors", (SYN,))],
    ids=["syn_flood", "syn_flood dropped", "udp_flood", "mixed_vectors"],
)
def test_what_reaches_services_and_clients_is_what_the_victim_counts(
    scenario: str, rules: tuple[Rule, ...], tmp_path: Path
) -> None:
    with watched(scenario, tmp_path, *rules) as run:
        before = run.accepted(), run.delivered(), run.handshakes()
        shown = run.flood()
        after = run.accepted(), run.delivered(), run.handshakes()
    flow = flow_of(shown)
    assert flow is not None
    accepted, delivered, handshakes = (now - then for now, then in zip(after, before, strict=True))
    reaches = flow.reaches * shown.seconds
    assert handshakes > 100
    assert reaches == pytest.approx(accepted, rel=0.02), shown.tables.ledger
    assert reaches == pytest.approx(delivered, rel=0.02), shown.tables.ledger
    assert max(run.completed) == pytest.approx(handshakes, rel=0.02)


FLOOD = PayloadMatch(b"flood:", 0)
HALF = (Prefix.parse("0.0.0.0/1"),)


@pytest.mark.one_each("mixed half")
@pytest.mark.parametrize(
    ("scenario", "kind", "made"),
    [
        ("syn_flood", "syn_flood", SYN),
        ("syn_flood", "syn_flood", rule(Kind.IPSET, sources=HALF, protocol=6, dport=80, tcp_flags=(18, 2))),
        ("few_sources", "udp_flood", rule(Kind.STRING, protocol=17, payload=(FLOOD,))),
        ("few_sources", "udp_flood", rule(Kind.XDP, sources=HALF, protocol=17, dport=27015)),
        ("mixed_vectors", "udp_flood", rule(Kind.XDP, protocol=17, dport=27015)),
        ("mixed_vectors", "ntp_amplification", rule(Kind.IPSET, sources=HALF, protocol=17, sport=123)),
    ],
    ids=["syn xdp", "syn half", "few string", "few half", "mixed xdp", "mixed half"],
)
def test_an_attacks_share_of_my_drops_is_what_the_rule_counts(
    scenario: str, kind: str, made: Rule, tmp_path: Path
) -> None:
    with watched(scenario, tmp_path, made) as run:
        shown = run.flood()
        (counted,) = run.in_rules().values()
        sent = sum(row["packets"] for row in run.lab.truth()["vectors"] if row["kind"] == kind)
        sent -= run.lab.link_full() if scenario != "mixed_vectors" else 0  # whose they were isn't known
    attacks: dict[str, Incident] = {attack.kind: attack for attack in shown.judgement.attacks}
    attack = attacks[kind]
    mine = sum(one.mine_share * one.pps for one in shown.judgement.attacks) * shown.seconds
    booked = sum(row.packets for row in shown.tables.ledger if row.rule is not None)
    # Of samples, few on a busy machine: four standard deviations of a share of so many
    samples = shown.tables.sampling.samples * attack.share
    noise = max(0.04, 4 * math.sqrt(0.25 / samples))
    assert attack.mine_share == pytest.approx(counted / sent, abs=noise), samples
    # The share and what it is a share of are two estimates, each from the samples of what was dropped
    assert mine <= booked * (1.01 + 4 * math.sqrt(2 / max(samples * attack.mine_share, 1)))
    assert counted > 1_000


def test_fragmented_datagrams_that_a_rule_drops_are_nobody_elses(tmp_path: Path) -> None:
    """The rule's counter goes by datagrams, the kernel's drop counter by fragments."""
    name = PayloadMatch(b"\x05peace\x07example\x03org", 12)
    with watched("dns_amplification", tmp_path, rule(Kind.STRING, protocol=17, payload=(name,))) as run:
        shown = run.flood()
        (counted,) = run.in_rules().values()
    drops = {row.rule: row.packets for row in shown.tables.ledger if row.layer == "netfilter"}
    assert drops["1"] > 1.3 * counted > 1_000
    assert sum(drops.values()) - drops["1"] < 0.02 * drops["1"]
    assert shown.judgement.attacks[0].mine_share > 0.95  # by datagrams it would be some 0.7
