"""A spoofed SYN flood with its signatures, clients among the sources, and addresses of full length."""

from __future__ import annotations

from msgspec.structs import replace
from screen_factory import POISON, snapshot, spoofed
from screen_parts import networks, ports, prefixes, share

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, PayloadMatch, Range
from fwtop.model.traffic.snapshot import (
    Destination,
    PacketSignature,
    PartTraffic,
    Snapshot,
    Source,
    Sources,
    TrafficPart,
)

LONG = "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe"
LONGER = "2001:db8:1234:5678:9abc:def0:1234:0/111"
SYNS = Match(
    family=4,
    protocol=6,
    dport=443,
    tcp_flags=(63, 2),
    ip_length=Range(40, 40),
    ttl=Range(53, 53),
    tcp_window=Range(512, 512),
)
BYTES = Match(
    family=6, protocol=17, sport=53, dport=9, ttl=Range(1, 1), payload=(PayloadMatch(POISON[:16], 0),)
)
CLIENTS = ("192.0.2.33", "2001:db8:a:b:c:d:e:f", "198.51.100.9")


def source(key: str, part: float, who: str, *, dropped: float = 0.0, asn: int | None = None) -> Source:
    return Source(key, share(part), dropped, "NL", asn, "Example", Prefix.parse(key), who=who)


def signatures(title: str) -> tuple[PacketSignature, ...]:
    fragments = Match(family=4, protocol=17, fragment=True, ip_length=Range(1500, 1500))
    return (
        PacketSignature(SYNS, share(0.78), 0.0, 0.0, 1.0, title),
        PacketSignature(BYTES, share(0.1), 1.0, 0.0, 0.9, "DNS amplification"),
        PacketSignature(fragments, share(0.04), 0.0, 0.2),
    )


def spoofed_syns() -> Snapshot:
    base = spoofed()
    victims = [source(f"{n + 3}.7.{n}.9", 0.0002, "attack", asn=64500 + n % 3) for n in range(20)]
    victims.insert(0, source(LONG, 0.0003, "attack"))
    clients = [source(key, 0.0001, "client") for key in CLIENTS]
    nets = (*prefixes(), source(LONGER, 0.01, ""))
    sources = Sources((clients[0], *victims, *clients[1:]), nets, networks(), ())
    there = tuple(
        Destination(key, share(part), 0.1, Prefix.parse(key))
        for key, part in (("192.0.2.1", 0.9), (LONG, 0.1))
    )
    tables = replace(base.tables, sources=sources, destinations=there)
    judgement = replace(base.judgement, signatures=signatures(base.judgement.attacks[0].title))
    return replace(base, tables=tables, judgement=judgement)


def part_of(part: TrafficPart, *keys: str) -> PartTraffic:
    """The tables of a part with these sources."""
    rows = tuple(source(key, 0.5, "attack") for key in keys)
    tables = replace(snapshot().tables, sources=Sources(rows), ports=ports()[:1])
    return PartTraffic(part, tables, (), signatures("SYN flood on port 443")[:1])
