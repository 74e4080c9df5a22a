"""What the scenes of the screen are made of: rows of tables, an attack, proposals, a rule."""

from __future__ import annotations

from string import ascii_uppercase

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.text import payload_text
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import Incident, LedgerRow, Payload, Port, Proposal, Share, Snapshot, Source

NOW = 1_790_000_000.0
PPS = 312_000.0
SECONDS = 3.0


def share(part: float, *, pps: float = PPS, error: float = 0.004, size: int = 90) -> Share:
    packets = round(part * pps * SECONDS)
    low, high = max(part - error, 0.0), min(part + error, 1.0)
    return Share(packets, packets * size, part * pps, part, low, high)


_CLIENTS = 0.002  # of all packets; who sends more is an attacker
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
    return Source(
        key,
        share(part),
        dropped,
        country,
        asn,
        name,
        Prefix.parse(key),
        rule,
        "client" if part < _CLIENTS else "attack",
        dropped,
        dropped,
    )


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
        found.append(Source(key, share(part), 0.0, country, asn, name, Prefix.parse(key), dropped_high=0.0))
    return tuple(found)


def networks() -> tuple[Source, ...]:
    return tuple(
        Source(f"AS{asn}", share(part), 0.0, country, asn, name, dropped_high=0.0)
        for (country, asn, name), part in zip(_PLACES, (0.52, 0.2, 0.1, 0.05), strict=False)
    )


def countries() -> tuple[Source, ...]:
    return tuple(
        Source(code, share(part), 0.0, dropped_high=0.0)
        for code, part in (("NL", 0.52), ("US", 0.2), ("DE", 0.1))
    )


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
            attack="UDP flood",
            stopped_pps=257_000.0,
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
            attack="UDP flood",
            stopped_pps=236_000.0,
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
            replace(
                block_rule(),
                kind=Kind.HASHLIMIT,
                match=Match(protocol=17, dport=27015),
                limit=RateLimit(1000, 1000, 24, 56),
            ),
            attack="UDP flood",
            stopped_pps=218_000.0,
        ),
        Proposal(
            4,
            "upstream",
            "call the provider: the link is full (97.0 % of 1 Gbit/s)",
            0.0,
            0.0,
            (),
            None,
            (),
            "",
            attack="UDP flood",
        ),
    )


def attack(**changes: object) -> Incident:
    first = Incident(
        "udp_flood",
        "UDP flood",
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
        target="udp/27015",
        sources="20 sources",
        id=1,
        letter="A",
    )
    made = replace(first, **changes)  # type: ignore[arg-type]
    return made if "bps" in changes else replace(made, bps=made.pps * 90 * 8)


def with_fates(shot: Snapshot) -> Snapshot:
    """Let the attacks' packets be the first that the ledger's drops hit, all attacks alike."""
    whole = sum(item.pps for item in shot.judgement.attacks)
    shares, left = {"mine": 0.0, "other": 0.0, "kernel": 0.0}, 1.0
    for row in shot.tables.ledger:
        if row.layer in ("delivered", "unexplained") or not whole:
            continue
        who = "mine" if row.rule else "other" if row.layer in ("xdp", "tc", "netfilter") else "kernel"
        part = min(row.pps / whole, left)
        shares[who], left = shares[who] + part, left - part
    told = {f"{who}_share": part for who, part in shares.items()}
    attacks = tuple(replace(item, **told) for item in shot.judgement.attacks)
    return joined(_with_drops(replace(shot, judgement=replace(shot.judgement, attacks=attacks)), 1.0 - left))


def _with_drops(shot: Snapshot, part: float) -> Snapshot:
    """Let as large a part of each attacker's packets be dropped as of their attack."""
    addresses = tuple(
        one
        if one.active_rule or one.who != "attack"
        else replace(one, dropped_share=part, dropped_low=part, dropped_high=part)
        for one in shot.tables.sources.address
    )
    sources = replace(shot.tables.sources, address=addresses)
    sources = replace(
        sources,
        prefix=tuple(
            replace(one, dropped_share=part, dropped_low=part, dropped_high=part) for one in sources.prefix
        ),
    )
    return replace(shot, tables=replace(shot.tables, sources=sources))


def joined(shot: Snapshot) -> Snapshot:
    """Give attacks ids and letters in their order, and what is about one of them its id."""
    attacks = tuple(
        replace(item, id=place, letter=ascii_uppercase[place - 1 : place] or "+")
        for place, item in enumerate(shot.judgement.attacks, 1)
    )
    ids = {item.title: item.id for item in attacks} | {
        f"{item.kind} {item.target}": item.id for item in attacks
    }
    attacks = tuple(replace(item, cause=ids.get(item.effect_of, 0)) for item in attacks)
    offers = tuple(
        replace(offer, incident=ids.get(offer.attack, 1), key=f"{ids.get(offer.attack, 1)} {offer.summary}")
        for offer in shot.judgement.proposals
    )
    return replace(shot, judgement=replace(shot.judgement, attacks=attacks, proposals=offers))
