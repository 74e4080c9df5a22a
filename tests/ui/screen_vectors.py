"""Attacks and proposals of several kinds at once, and what a full connection table adds."""

from __future__ import annotations

from msgspec.structs import replace
from screen_parts import NOW, PPS, QUERY, SECONDS, attack, conntrack, joined

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule, RuleStatus, State
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import Incident, LedgerRow, Proposal, Snapshot

SYN = Match(protocol=6, dport=443, tcp_flags=(0x12, 0x02), ip_length=Range(40, 40))
DNS = Match(protocol=17, sport=53)
_COSTS = {
    Kind.XDP: 105.0,
    Kind.SYNPROXY: 1500.0,
    Kind.STRING: 410.0,
    Kind.IPSET: 95.0,
    Kind.HASHLIMIT: 180.0,
    Kind.TC: 190.0,
    Kind.NFTABLES: 240.0,
}


def _rule(kind: Kind, summary: str, match: Match) -> Rule:
    limit = RateLimit(1000, 1000, 24, 56) if kind is Kind.HASHLIMIT else None
    return Rule("", kind, match, summary, 600, limit=limit)


def _offer(number: int, of: Incident, rule: Rule, stops: float, harm: float = 0.0) -> Proposal:
    return Proposal(
        number,
        rule.kind.value,
        rule.summary,
        stops,
        harm,
        cost_ns=_COSTS.get(rule.kind),
        fwtop=f"fwtop apply {number}",
        rule=rule,
        attack=of.title,
        stopped_pps=stops * of.pps,
    )


SYN_FLOOD = attack(
    kind="syn_flood",
    title="SYN flood",
    target="tcp/443",
    share=0.45,
    pps=0.45 * PPS,
    bps=0.45 * PPS * 60 * 8,
    spoofed=True,
    sources="spoofed",
    since=NOW - 252,
    evidence=("140k SYN a second to tcp 443, 0.02 % of them completed",),
)
UDP_FLOOD = attack(share=0.25, pps=0.25 * PPS, confidence=0.97)
AMPLIFICATION = attack(
    kind="dns_amplification",
    title="DNS amplification",
    target="udp from 53",
    share=0.14,
    pps=0.14 * PPS,
    bps=0.14 * PPS * 1200 * 8,
    confidence=0.91,
    sources="~340 sources",
    since=NOW - 31,
    evidence=("answers to questions that nobody here asked",),
)


def _upstream(number: int) -> Proposal:
    summary = "call the provider: the link is full (97.0 % of 1 Gbit/s)"
    return Proposal(number, "upstream", summary, 0.0, 0.0, attack=AMPLIFICATION.title)


def syn_proposals() -> tuple[Proposal, ...]:
    """Against a SYN flood and an amplification."""
    exact = "drop TCP to port 443, SYN without ACK, length 40, in the driver"
    proxy = "SYN proxy on port 443: answer with cookies, pass only finished handshakes"
    https = Match(protocol=6, dport=443)
    return (
        _offer(1, SYN_FLOOD, _rule(Kind.XDP, exact, SYN), 0.9995),
        _offer(2, SYN_FLOOD, _rule(Kind.SYNPROXY, proxy, https), 1.0),
        _offer(3, AMPLIFICATION, _rule(Kind.XDP, "drop UDP from port 53 in the driver", DNS), 0.998, 0.0002),
        _upstream(4),
    )


def vector_proposals() -> tuple[Proposal, ...]:
    """Twelve, of all kinds: three more than there are keys."""
    getstatus = Match(protocol=17, payload=(PayloadMatch(b"\xff\xff\xff\xffgetstatus", 0),))
    query = Match(protocol=17, payload=(PayloadMatch(QUERY, 12, None, "example.org"),))
    prefixes = Match(sources=tuple(Prefix.parse(f"203.0.113.{16 * place}/28") for place in range(12)))
    game, https = Match(protocol=17, dport=27015), Match(protocol=6, dport=443)
    bytes_ = "drop UDP to port 27015 with “····getstatus”"
    limit = "limit UDP to port 27015 to 1,000/s per /24 (IPv6 /56)"
    rest: tuple[tuple[Incident, Rule, float, float], ...] = (
        (UDP_FLOOD, _rule(Kind.STRING, bytes_, getstatus), 0.992, 0.0),
        (UDP_FLOOD, _rule(Kind.IPSET, "block 12 prefixes of AS64500", prefixes), 0.91, 0.004),
        (UDP_FLOOD, _rule(Kind.HASHLIMIT, limit, game), 0.84, 0.062),
        (UDP_FLOOD, _rule(Kind.TC, f"{bytes_} at tc ingress", getstatus), 0.992, 0.0),
        (AMPLIFICATION, _rule(Kind.STRING, "drop UDP with the DNS name example.org", query), 0.97, 0.0),
        (AMPLIFICATION, _rule(Kind.NFTABLES, "drop UDP from port 53 at netdev ingress", DNS), 0.998, 0.0002),
        (SYN_FLOOD, _rule(Kind.NOTRACK, "don't track TCP to port 443 (NOTRACK)", https), 0.0, 0.0),
        (SYN_FLOOD, _rule(Kind.SYSCTL, "shorten SYN timeouts to 10 s", Match()), 0.0, 0.0),
    )
    offers = [_offer(number, *values) for number, values in enumerate(rest, start=4)]
    return (*syn_proposals()[:3], *offers, _upstream(12))


def table_attack(table: ConntrackSample, cause: Incident) -> Incident:
    """A connection table that an attack fills: no packets of its own."""
    return attack(
        kind="conntrack_exhaustion",
        title="Exhaustion of the connection table",
        target="",
        share=0.0,
        pps=table.new_per_s,
        bps=0.0,
        confidence=0.97,
        sources="",
        evidence=(f"{table.count:,} of {table.max:,} entries in use",),
        effect_of=f"{cause.kind} {cause.target}",
    )


def _fate(item: Incident, mine: float, kernel: float) -> Incident:
    return replace(item, mine_share=mine, kernel_share=kernel)


def vectors(base: Snapshot) -> Snapshot:
    """Four attacks, one of them an effect of another; one rule stops one of them."""
    table = conntrack(1.0, new_per_s=83_700.0, seconds_to_full=0.0, drop=12_400, early_drop=251_100)
    bytes_ = vector_proposals()[3].rule
    assert bytes_ is not None
    rule = RuleStatus(
        replace(bytes_, id="118", created=NOW - 188, predicted_pps=77_400.0, predicted_attack_share=0.992),
        State.CONFIRMED,
        720_000,
        64_800_000,
        0.24 * PPS,
        NOW + 412,
    )
    attacks = (
        _fate(SYN_FLOOD, 0.0, 0.4),
        _fate(UDP_FLOOD, 0.96, 0.0),
        _fate(AMPLIFICATION, 0.0, 0.9),
        table_attack(table, SYN_FLOOD),
    )
    parts = (
        ("netfilter", "NETFILTER_DROP", UDP_FLOOD.pps * 0.96, "118"),
        ("conntrack", "table full", SYN_FLOOD.pps * 0.4, None),
        ("ip", "NO_SOCKET", AMPLIFICATION.pps * 0.9, None),
    )
    book = [LedgerRow(layer, reason, round(pps * SECONDS), pps, by) for layer, reason, pps, by in parts]
    rest = PPS - sum(row.pps for row in book)
    book.append(LedgerRow("delivered", "accepted", round(rest * SECONDS), rest))
    totals = replace(base.tables.totals, bps=sum(item.bps for item in attacks) + rest * 90 * 8)
    shot = replace(
        base,
        tables=replace(base.tables, totals=totals, ledger=tuple(book)),
        judgement=replace(base.judgement, attacks=attacks, proposals=vector_proposals()),
        conntrack=table,
        mitigations=(rule,),
    )
    return joined(shot)
