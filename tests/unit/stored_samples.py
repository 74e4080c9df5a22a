"""Snapshots as a flood makes them, for the tests of what stores and reports them."""

from __future__ import annotations

import functools

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule, RuleStatus, State
from fwtop.model.traffic.counters import ConntrackSample, TcpService
from fwtop.model.traffic.session import AttackEvidence, SamplePacket
from fwtop.model.traffic.snapshot import (
    Destination,
    Incident,
    Judgement,
    LedgerRow,
    Origin,
    PacketSignature,
    PartTraffic,
    Payload,
    Port,
    Proposal,
    Sampling,
    Share,
    Snapshot,
    Source,
    Sources,
    Tables,
    Totals,
    TrafficPart,
)

START = 1_795_230_764.0  # 2026-11-21T03:12:44Z
POISON = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e\"'`|*_[x](javascript:1)=cmd\r\n<!--"


def share(pps: float, total: float, seconds: float = 5.0) -> Share:
    part = pps / total if total else 0.0
    return Share(int(pps * seconds), int(pps * seconds * 512), pps, part, part * 0.96, part * 1.04)


def rule(number: int = 1, *, created: float = START + 30, predicted: float = 180_000.0) -> Rule:
    sources = tuple(Prefix.parse(text) for text in ("203.0.113.0/24", "198.51.100.7"))
    return Rule(
        str(number),
        Kind.IPSET,
        Match(sources=sources),
        "block 203.0.113.0/24 and 1 more",
        600,
        created,
        "key",
        predicted_pps=predicted,
        predicted_attack_share=0.97,
        predicted_collateral_share=0.002,
    )


def other_rules() -> tuple[Rule, ...]:
    payload = (PayloadMatch(b"\x05evil'\x03com\x00", 12, None, "evil'.com"), PayloadMatch(b"$(reboot)", None))
    return (
        Rule(
            "2",
            Kind.HASHLIMIT,
            Match(protocol=17, dport=53),
            "limit udp 53",
            600,
            START,
            limit=RateLimit(1000, 2000, 24, 56),
        ),
        Rule("3", Kind.STRING, Match(protocol=17, payload=payload), "match", 600, START),
        Rule(
            "4",
            Kind.XDP,
            Match(protocol=6, sport=80, tcp_flags=(0x12, 0x12), fragment=False),
            "drop",
            60,
            START,
        ),
        Rule("5", Kind.NOTRACK, Match(protocol=17, dport=53), "notrack", 7200, START),
        Rule(
            "6",
            Kind.IPSET,
            Match(sources=(Prefix.parse("10.0.0.0/8"),)),
            "block AS64500",
            600,
            START,
            origin="asn:64500",
        ),
    )


def status(of: Rule, at: float, *, state: State = State.CONFIRMED, pps: float = 178_000.0) -> RuleStatus:
    since = max(at - of.created, 0.0)
    return RuleStatus(of, state, int(pps * since), int(pps * since * 512), pps, of.created + of.ttl_seconds)


def attack(kind: str = "dns_amplification", pps: float = 185_000.0, *, since: float = START + 20) -> Incident:
    evidence = (
        "98 % of packets are UDP from port 53, 1,480 bytes long, to hosts that asked nothing.",
        "41 reflectors answer with the same name, isc.org, of type ANY.",
    )
    number = 1 + sum(map(ord, kind)) - sum(map(ord, "dns_amplification")) if kind else 1  # one a kind
    return Incident(
        kind, "DNS amplification", 0.93, pps, 0.97, False, evidence, since, bps=pps * 512 * 8, id=number
    )


def sources(pps: float, count: int = 50) -> Sources:
    def entry(at: int, key: str, prefix: Prefix | None) -> Source:
        return Source(
            key, share(pps / (at + 2), pps), 0.9, "NL", 64500 + at, f"EXAMPLE-NET-{at} Example BV", prefix
        )

    def located(at: int, text: str) -> Source:
        prefix = Prefix.parse(text)
        return entry(at, str(prefix), prefix)

    return Sources(
        tuple(located(at, f"203.0.{at % 7}.{at * 5 % 251}") for at in range(count)),
        tuple(located(at, f"198.{at}.0.0/16") for at in range(count)),
        tuple(entry(at, f"AS{64500 + at}", None) for at in range(count)),
        tuple(entry(at, f"{chr(65 + at // 26)}{chr(65 + at % 26)}", None) for at in range(count)),
    )


def proposal(pps: float) -> Proposal:
    return Proposal(
        1,
        "ipset",
        "block 203.0.113.0/24 and 1 more",
        0.97,
        0.002,
        ("192.0.2.7:443 tcp",),
        120.0,
        ("ipset create fwtop-1 hash:net timeout 600", "iptables -t raw -I FWTOP -j DROP"),
        "fwtop block 203.0.113.0/24 198.51.100.7 --ttl 10m",
        rule(0),
        stopped_pps=pps,
    )


def signatures() -> tuple[PacketSignature, ...]:
    match = Match(family=4, protocol=17, sport=53, ip_length=Range(1480, 1480), ttl=Range(53, 53))
    return (PacketSignature(match, share(9.0, 10.0), 0.9, 0.0, 1.0, "DNS amplification"),)


def snapshot(
    at: float,
    pps: float = 200_000.0,
    *,
    dropped: float = 0.0,
    attacks: tuple[Incident, ...] = (),
    mitigations: tuple[RuleStatus, ...] = (),
    busy: bool = True,
    proposals: bool = False,
    tcp: TcpService | None = None,
) -> Snapshot:
    """What the window of 5 s that ended at `at` held."""
    seconds = 5.0
    totals = Totals(
        int(pps * seconds),
        int(pps * seconds * 512),
        pps,
        pps * 4096,
        int((pps - dropped) * seconds),
        int(dropped * seconds),
    )
    count = 50 if busy else 3
    payloads = tuple(
        Payload(
            bytes([at]) * 16, "·" * 16, 12, "isc.org" if at == 0 else None, share(pps / (at + 2), pps), 0.001
        )
        for at in range(count)
    )
    ports = tuple(
        Port("udp", "src", 53 + at, "domain" if at == 0 else None, share(pps / (at + 2), pps))
        for at in range(count)
    )
    tables = Tables(
        totals,
        Sampling(64.0, 20_000, 12),
        (
            LedgerRow(
                "netfilter", "NETFILTER_DROP", int(dropped * seconds), dropped, "1" if mitigations else None
            ),
            LedgerRow("delivered", "", int((pps - dropped) * seconds), pps - dropped),
        ),
        sources(pps, count),
        ports,
        payloads,
        {"udp": share(pps * 0.96, pps), "tcp": share(pps * 0.04, pps)},
        (Destination("192.0.2.1", share(pps, pps), 0.9, Prefix.parse("192.0.2.1")),),
    )
    judgement = Judgement(
        attacks, (proposal(pps),) if proposals else (), (), "20 s before the attack", 4_000, signatures()
    )
    fill = ConntrackSample(120_000, 262_144, 5_000.0, 3, 1, 0, 28.0)
    return Snapshot(
        "web-1",
        Origin("live", ("eth0",)),
        at - seconds,
        seconds,
        tables,
        judgement,
        fill,
        mitigations,
        "ready",
        0.41,
        tcp,
    )


def evidence(of: Snapshot, packet: bytes = bytes(range(60))) -> tuple[AttackEvidence, ...]:
    """What the attack's own packets were, as if all packets were its."""
    at = of.started + of.seconds
    return tuple(
        AttackEvidence(
            at,
            item.kind,
            item.pps,
            PartTraffic(TrafficPart(item.id), of.tables, of.tables.payloads, of.judgement.signatures),
            (SamplePacket(at, item.kind, 1_500, True, packet, item.id),),
            item.id,
        )
        for item in of.judgement.attacks
    )


def poisoned(at: float) -> Snapshot:
    """A snapshot whose every text is an attempt at the reader."""
    calm = snapshot(at, busy=False)
    entry = replace(calm.tables.sources.address[0], key=POISON, as_name=POISON, country=POISON)
    payload = replace(calm.tables.payloads[0], data=POISON.encode(), text=POISON, dns_name=POISON)
    port = replace(calm.tables.ports[0], service=POISON)
    tables = replace(
        calm.tables,
        sources=Sources((entry,), (entry,), (entry,), (entry,)),
        payloads=(payload,),
        ports=(port,),
        ledger=(LedgerRow(POISON, POISON, 7, 1.0, POISON),),
    )
    bad = replace(attack(), title=POISON, evidence=(POISON,))
    named = replace(rule(), summary=POISON, created_by=POISON, origin=POISON)
    return replace(
        calm,
        host=POISON,
        origin=Origin("live", (POISON,), POISON),
        tables=tables,
        judgement=Judgement((bad,), (replace(proposal(1.0), summary=POISON, commands=(POISON,)),)),
        mitigations=(replace(status(named, at), note=POISON),),
        notes=(POISON,),
    )


def session_ticks(length: int = 120) -> list[Snapshot]:
    """A calm start, an attack from second 20 to 100, a rule from second 30 on that stops most of it."""
    return list(_session_ticks(length))


@functools.cache
def _session_ticks(length: int) -> tuple[Snapshot, ...]:
    ticks = []
    for second in range(length):
        at = START + second
        attacked = 20 <= second < 100
        stopped = 0.96 if second >= 32 else 0.0
        pps = 200_000.0 if attacked else 9_000.0
        blocked = attacked and second >= 32
        rules: tuple[RuleStatus, ...] = ()
        if second >= 30:
            state = State.PROVISIONAL if second < 40 else State.CONFIRMED if second < 110 else State.REVERTED
            rules = (status(rule(), at, state=state, pps=178_000.0 if blocked else 0.0),)
        ticks.append(
            snapshot(
                at,
                pps,
                dropped=178_000.0 if blocked else 40.0,
                attacks=(replace(attack(), mine_share=stopped),) if attacked else (),
                mitigations=rules,
                proposals=attacked,
                tcp=TcpService(50, 60.0 if 20 <= second < 32 else 100.0, 400.0),
            )
        )
    return tuple(ticks)
