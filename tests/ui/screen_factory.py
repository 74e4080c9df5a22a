"""Snapshots of the scenes that the screen must show well, built by hand with a fixed clock."""

from __future__ import annotations

from dataclasses import replace

from fwtop.model.address import Prefix
from fwtop.model.counters import ConntrackSample
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule, RuleStatus, State
from fwtop.model.snapshot import (
    Attack,
    Judgement,
    LedgerRow,
    Origin,
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
)
from fwtop.model.text import payload_text, safe_text

NOW = 1_790_000_000.0
PPS = 312_000.0
SECONDS = 3.0


def share(part: float, *, pps: float = PPS, error: float = 0.004, size: int = 90) -> Share:
    packets = round(part * pps * SECONDS)
    low, high = max(part - error, 0.0), min(part + error, 1.0)
    return Share(packets, packets * size, part * pps, part, low, high)


_PLACES = (
    ("NL", 64500, "Example Hosting B.V."),
    ("US", 64501, "Documentation Networks"),
    ("DE", 64502, "Beispiel Netze GmbH"),
    ("BR", 64503, "Exemplo Telecom S.A."),
    (None, None, None),
    ("VN", 64505, "Test Transit"),
)


def address(number: int, part: float, *, dropped: float = 0.0, rule: str | None = None) -> Source:
    country, asn, name = _PLACES[number % len(_PLACES)]
    key = f"203.0.113.{number}" if number % 7 else f"2001:db8:{number:x}::{number:x}"
    return Source(key, share(part), dropped, country, asn, name, Prefix.parse(key), rule)


def falling(count: int, first: float, ratio: float) -> list[float]:
    return [first * ratio**number for number in range(count)]


def few_addresses(count: int = 40) -> tuple[Source, ...]:
    return tuple(address(n + 1, part) for n, part in enumerate(falling(count, 0.12, 0.87)))


def prefixes() -> tuple[Source, ...]:
    rows = (
        ("203.0.113.0/24", 0.71),
        ("198.51.100.0/25", 0.11),
        ("2001:db8:7::/48", 0.06),
        ("192.0.2.0/26", 0.02),
    )
    found = []
    for number, (key, part) in enumerate(rows):
        country, asn, name = _PLACES[number]
        found.append(Source(key, share(part), 0.0, country, asn, name, Prefix.parse(key)))
    return tuple(found)


def networks() -> tuple[Source, ...]:
    return tuple(
        Source(f"AS{asn}", share(part), 0.0, country, asn, name)
        for (country, asn, name), part in zip(_PLACES, (0.52, 0.2, 0.1, 0.05), strict=False)
    )


def countries() -> tuple[Source, ...]:
    return tuple(Source(code, share(part), 0.0) for code, part in (("NL", 0.52), ("US", 0.2), ("DE", 0.1)))


def payload(
    data: bytes, part: float, *, offset: int | None = 0, dns: str | None = None, normal: float = 0.0
) -> Payload:
    return Payload(data, payload_text(data), offset, dns, share(part), normal)


QUERY = b"\x07example\x03org\x00\x00\xff\x00\x01"


def payloads() -> tuple[Payload, ...]:
    return (
        payload(b"\xff\xff\xff\xffgetstatus\n\x00\x00", 0.71),
        payload(QUERY, 0.12, offset=12, dns="example.org", normal=0.001),
        payload(b"GET / HTTP/1.1\r\nHost: www.example.net\r\n", 0.02, normal=0.31),
        payload(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 0.011, normal=0.22),
    )


def ports() -> tuple[Port, ...]:
    rows = (
        ("udp", "dst", 27015, "steam", 0.83),
        ("udp", "src", 53, "domain", 0.12),
        ("tcp", "dst", 443, "https", 0.03),
        ("tcp", "dst", 80, "http", 0.015),
        ("tcp", "dst", 22, "ssh", 0.001),
        ("udp", "dst", 40123, None, 0.0004),
    )
    return tuple(Port(proto, side, port, name, share(part)) for proto, side, port, name, part in rows)


def ledger(dropped: float, rule: str | None = None) -> tuple[LedgerRow, ...]:
    def row(
        layer: str, reason: str, part: float, by: str | None = None, mostly: Match | None = None
    ) -> LedgerRow:
        count = round(part * PPS * SECONDS)
        return LedgerRow(layer, reason, count, part * PPS, by, mostly, 0.992 if mostly else 0.0)

    ours = (row("netfilter", "NETFILTER_DROP", dropped * 0.9, rule),) if rule else ()
    rest = dropped * (0.1 if rule else 1.0)
    return (
        *ours,
        row("socket", "SOCKET_RCVBUFF", rest * 0.7, mostly=Match(protocol=17, dport=27015)),
        row("delivered", "to a socket", 1 - dropped),
        row("ip", "NO_SOCKET", rest * 0.2),
        row("netfilter", "NETFILTER_DROP", rest * 0.1),
        row("unexplained", "", 0.0004),
    )


def conntrack(fill: float = 0.31, **more: float | None) -> ConntrackSample:
    values: dict[str, float | int | None] = {"new_per_s": 1240.0, **more}
    return replace(ConntrackSample(round(fill * 262_144), 262_144), **values)  # type: ignore[arg-type]


def block_rule(rule_id: str = "") -> Rule:
    sources = tuple(Prefix.parse(f"203.0.113.{number}") for number in (1, 2, 3))
    return Rule(
        rule_id,
        Kind.IPSET,
        Match(sources=sources),
        "block 3 addresses",
        600,
        NOW - 9,
        "key",
        predicted_pps=96_000.0,
        predicted_attack_share=0.33,
        predicted_collateral_share=0.001,
    )


def proposals() -> tuple[Proposal, ...]:
    string = Rule(
        "",
        Kind.STRING,
        Match(protocol=17, payload=(PayloadMatch(b"\xff\xff\xff\xffgetstatus", 0),)),
        "drop udp to 27015 with “····getstatus”",
        600,
    )
    return (
        Proposal(
            1,
            "string",
            string.summary,
            0.992,
            0.0,
            (),
            410.0,
            ("iptables -w -t raw -A FWTOP -p udp -m string --hex-string '|ffffffff|getstatus' -j DROP",),
            "fwtop match --hex ffffffff676574737461747573 --proto udp",
            string,
            stopped_pps=221_000.0,
        ),
        Proposal(
            2,
            "ipset",
            "block 20 prefixes of AS64500 and AS64501",
            0.91,
            0.004,
            ("2 of 460 HTTPS clients, 203.0.113.77",),
            95.0,
            ("ipset add fwtop-4 203.0.113.0/24 timeout 32",),
            "fwtop block 203.0.113.0/24",
            block_rule(),
            stopped_pps=190_000.0,
        ),
        Proposal(
            3,
            "hashlimit",
            "limit udp dst 27015 to 1.00k/s per /24",
            0.84,
            0.062,
            ("31 of 460 players on udp 27015",),
            180.0,
            (),
            "fwtop limit --proto udp --dport 27015 --per 24 --rate 1000/s",
            replace(block_rule(), kind=Kind.HASHLIMIT),
            stopped_pps=170_000.0,
        ),
        Proposal(4, "upstream", "call upstream: the link itself is full", 1.0, 0.0, (), None, (), "", None),
    )


def attack(**changes: object) -> Attack:
    first = Attack(
        "udp_flood",
        "UDP flood on port 27015",
        0.83,
        0.83 * PPS,
        0.97,
        False,
        (
            "259k packets a second to udp 27015, 210 times what is normal there",
            "20 sources send 93 % of it, each with one constant TTL",
            "71 % of the packets begin with the same 13 bytes",
        ),
        NOW - 106,
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def snapshot(**changes: object) -> Snapshot:
    tables = Tables(
        Totals(round(PPS * SECONDS), round(PPS * SECONDS * 90), PPS, PPS * 90 * 8, 100_000, 560_000),
        Sampling(16.0, 58_500, 0),
        ledger(0.6),
        Sources(few_addresses(), prefixes(), networks(), countries()),
        ports(),
        payloads(),
    )
    judgement = Judgement((attack(),), proposals(), payloads(), "2 m of traffic before the attack", 41_000)
    base = Snapshot(
        "web1",
        Origin("live", ("eth0",)),
        NOW - SECONDS,
        SECONDS,
        tables,
        judgement,
        conntrack(),
        guardian="ready",
        softirq_share=0.41,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def calm() -> Snapshot:
    base = snapshot()
    quiet = tuple(
        replace(source, share=share(part, pps=840, error=0.02))
        for source, part in zip(few_addresses(9), falling(9, 0.2, 0.8), strict=True)
    )
    served = tuple(
        replace(port, share=share(part, pps=840, error=0.02))
        for port, part in zip(ports()[2:], (0.7, 0.2, 0.05, 0.01), strict=True)
    )
    tables = replace(
        base.tables,
        totals=Totals(2520, 1_890_000, 840.0, 5_040_000.0, 2510, 4),
        sampling=Sampling(1.0, 2520, 0),
        ledger=(LedgerRow("delivered", "to a socket", 2516, 838.7), LedgerRow("ip", "NO_SOCKET", 4, 1.3)),
        sources=Sources(quiet, quiet[:3], networks(), countries()),
        ports=served,
        payloads=payloads()[2:],
    )
    return replace(
        base,
        tables=tables,
        judgement=Judgement(payloads=payloads()[2:]),
        conntrack=conntrack(0.01, new_per_s=12.0),
        softirq_share=0.02,
    )


def spoofed() -> Snapshot:
    base = snapshot()
    many = tuple(
        Source(
            f"{(n * 37) % 223 + 1}.{n * 91 % 256}.{n * 53 % 256}.{n * 17 % 256}",
            share(0.0002, error=0.0002),
            0.0,
        )
        for n in range(50)
    )
    attacks = (
        attack(
            kind="syn_flood",
            title="SYN flood on port 443",
            share=0.78,
            pps=0.78 * PPS,
            spoofed=True,
            evidence=(
                "243k SYN a second to tcp 443, 0.02 % of them completed",
                "201k sources in 3 s, nearly all seen once, spread evenly over the whole address space",
            ),
        ),
        attack(
            kind="dns_amplification", title="DNS amplification", share=0.14, pps=0.14 * PPS, confidence=0.91
        ),
    )
    tables = replace(
        base.tables, sources=Sources(many, prefixes()[1:], (), ()), sampling=Sampling(16.0, 58_500, 312)
    )
    return replace(
        base,
        tables=tables,
        judgement=replace(base.judgement, attacks=attacks),
        conntrack=conntrack(0.68, new_per_s=41_200.0, seconds_to_full=2.0, insert_failed=93),
    )


def conntrack_full() -> Snapshot:
    base = spoofed()
    full = conntrack(
        1.0, new_per_s=9_100.0, seconds_to_full=0.0, insert_failed=4102, drop=61_930, early_drop=712
    )
    return replace(base, conntrack=full, notes=("the connection table is full: new clients are refused",))


def provisional(seconds_left: float = 21.0) -> Snapshot:
    base = snapshot()
    status = RuleStatus(
        block_rule("7"),
        State.PROVISIONAL,
        288_000,
        25_920_000,
        95_400.0,
        NOW + seconds_left + 2,
        NOW + seconds_left,
        entries={"203.0.113.1": 120_000},
    )
    kept = RuleStatus(
        replace(
            block_rule("5"),
            summary="limit udp src 53 to 1.00k/s per /24",
            kind=Kind.HASHLIMIT,
            created=NOW - 200,
            predicted_pps=None,
        ),
        State.CONFIRMED,
        1_200_000,
        90_000_000,
        36_100.0,
        NOW + 392,
    )
    sources = tuple(
        replace(source, dropped_share=1.0, active_rule="7") if number < 3 else source
        for number, source in enumerate(few_addresses())
    )
    tables = replace(
        base.tables, sources=replace(base.tables.sources, address=sources), ledger=ledger(0.6, "7")
    )
    return replace(base, tables=tables, mitigations=(status, kept))


POISON = b"GET / [/] HTTP [@click=app.quit]x[/] \x1b[2J\x1b]0;owned\x07 \xe2\x80\xae\x9b31m [red]"


def poison() -> Snapshot:
    base = snapshot()
    bad = payload(POISON, 0.5, dns=None)
    named = payload(QUERY, 0.2, offset=12, dns=safe_text("[@click=app.quit]x.\u202e\x1b[31m.example"))
    name = safe_text(b"[bold]Evil\x1b[31m \xe2\x80\xaeAS[/]")
    sources = tuple(replace(source, as_name=name, asn=64666) for source in few_addresses(5))
    tables = replace(
        base.tables, payloads=(bad, named), sources=replace(base.tables.sources, address=sources)
    )
    judgement = replace(
        base.judgement, payloads=(), attacks=(attack(title=safe_text("flood [/] [@click=app.quit]x")),)
    )
    return replace(base, host=safe_text("web[/]1\x1b"), tables=tables, judgement=judgement)


SCENES = {
    "calm": calm,
    "few_sources": snapshot,
    "spoofed": spoofed,
    "conntrack_full": conntrack_full,
    "provisional": provisional,
    "poison": poison,
}
