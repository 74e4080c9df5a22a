"""Random frames, valid and malformed, and random rules for them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from frames import ethernet, extension, fragment6, ipv4, ipv6, mpls, pppoe, tcp, udp

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, PayloadMatch, Range

SOURCES4 = ("192.0.2.1", "192.0.2.7", "198.51.100.200", "10.0.0.1", "10.1.2.3", "203.0.113.255")
SOURCES6 = ("2001:db8::1", "2001:db8:7::1", "2001:db8:8:1::5", "fd00::1", "::1")
PORTS = (53, 161, 80, 123, 179, 3784, 40000)
WORDS = (b"evil", b"\x03www\x07example\x03com\x00", b"\x00\x00\x00\x01", b"GET / HTTP/1.1\r\nHost: x", b"zz")
_BLIND = 0.25  # of frames are damaged


def random_frame(chance: random.Random) -> bytes:
    """Return an Ethernet frame."""
    if chance.random() < 0.5:
        packet, kind = _ipv4(chance), 0x0800
    else:
        packet, kind = _ipv6(chance), 0x86DD
    tags = tuple((chance.choice((0x8100, 0x88A8)), 5) for _ in range(chance.choice((0, 0, 0, 1, 2, 4, 5))))
    wrapped = chance.random()
    if wrapped < 0.1:
        packet, kind = pppoe(packet, chance.choice((0x21 if kind == 0x0800 else 0x57, 0x21, 0xC021))), 0x8864
    elif wrapped < 0.2:
        packet, kind = mpls(packet, *range(chance.choice((1, 2, 8, 9)))), chance.choice((0x8847, 0x8848))
    frame = bytearray(ethernet(packet, kind, tags) + bytes(chance.choice((0, 0, 7))))
    while chance.random() < _BLIND:
        frame[chance.randrange(12, min(len(frame), 90))] = chance.choice((0, 1, 5, 6, 17, 44, 69, 96, 255))
    if chance.random() < 0.15:
        del frame[chance.randrange(14, len(frame)) :]
    return bytes(frame).ljust(14, b"\0")


def _payload(chance: random.Random) -> bytes:
    words = [chance.choice((*WORDS, b"EVIL", chance.randbytes(chance.randrange(60)))) for _ in range(3)]
    return b"".join(words[: chance.randrange(4)])


def _transport(chance: random.Random, family: int) -> tuple[bytes, int]:
    kind = chance.choice(("udp", "udp", "tcp", "icmp", "other"))
    ports = chance.choice(PORTS), chance.choice(PORTS)
    if kind == "udp":
        length = chance.choice((None, None, None, 0, 7, 12, 2000))
        return udp(*ports, _payload(chance), length=length), chance.choice((17, 17, 17, 136))
    if kind == "tcp":
        flags = chance.choice((2, 16, 18, 4, 255))
        window = chance.choice((0, 512, 64240))
        options = bytes(chance.choice((0, 12)))
        seq = chance.choice((0, 1, 0xFFFF_FFFF))
        return tcp(*ports, flags, _payload(chance), seq=seq, options=options, window=window), 6
    if kind == "icmp":
        icmp_type = chance.choice((0, 8, 128, 133, 134, 135, 136, 137))
        protocol = chance.choice((1, 58, 1 if family == 4 else 58))
        return bytes([icmp_type, *bytes(7)]) + _payload(chance), protocol
    return ports[0].to_bytes(2, "big") + chance.randbytes(chance.randrange(40)), chance.choice(
        (132, 47, 33, 89, 112)
    )


def _ipv4(chance: random.Random) -> bytes:
    body, protocol = _transport(chance, 4)
    return ipv4(
        body,
        protocol,
        chance.choice(SOURCES4),
        chance.choice(SOURCES4),
        options=bytes(chance.choice((0, 0, 4, 40))),
        frag=chance.choice((0, 0, 0, 0x4000, 0x2000, 5, 0x2005)),
        ttl=chance.choice((1, 55, 64, 255)),
        ident=chance.choice((0, 7, 0x1234)),
        total=chance.choice((None, None, None, None, 0, 30)),
    )


def _ipv6(chance: random.Random) -> bytes:
    body, kind = _transport(chance, 6)
    for _ in range(chance.choice((0, 0, 0, 1, 2, 3, 11, 13))):
        if chance.random() < 0.3:
            body = fragment6(kind, chance.choice((0, 0, 9)), chance.choice((0, 1))) + body
            kind = 44
        else:
            size = chance.choice((6, 6, 14, 54))
            body = extension(kind, chance.randbytes(size)) + body
            kind = chance.choice((0, 43, 60, 135, 51))
    hops = chance.choice((1, 55, 64, 255))
    return ipv6(body, kind, chance.choice(SOURCES6), chance.choice(SOURCES6), hops=hops)


def random_matches(chance: random.Random) -> list[Match]:
    """Return up to ten rules; many packets reach the last one."""
    return [_match(chance) for _ in range(chance.randrange(1, 10))] + [Match(protocol=17)]


def _match(chance: random.Random) -> Match:
    def some(value: object, odds: float = 0.25) -> object:
        return value if chance.random() < odds else None

    fields = {
        "family": some(chance.choice((4, 6))),
        "protocol": some(chance.choice((1, 6, 17, 17, 58, 132)), 0.5),
        "sport": some(chance.choice(PORTS)),
        "dport": some(chance.choice(PORTS)),
        "ip_length": some(Range(chance.randrange(100), chance.randrange(60, 300)), 0.2),
        "ttl": some(chance.choice((Range(55, 55), Range(50, 100))), 0.2),
        "tcp_flags": some(chance.choice(((18, 2), (255, 18), (4, 0))), 0.1),
        "fragment": some(chance.random() < 0.5, 0.2),
        "icmp_type": some(chance.choice((0, 8, 128, 135)), 0.1),
        "ip_id": some(chance.choice((Range(0, 0), Range(7, 7), Range(1, 0xFFFF))), 0.1),
        "tcp_seq": some(chance.choice((Range(0, 0), Range(1, 1), Range(2, 0xFFFF_FFFF))), 0.1),
        "tcp_window": some(chance.choice((Range(0, 0), Range(512, 512), Range(1, 64240))), 0.1),
        "tcp_header": some(chance.choice((Range(20, 20), Range(21, 60), Range(0, 19))), 0.1),
        "sources": some(_prefixes(chance)) or (),
        "destinations": some(_prefixes(chance), 0.1) or (),
        "payload": some((_payload_match(chance),), 0.3) or (),
    }
    return Match(**fields) if any(item not in (None, ()) for item in fields.values()) else _match(chance)


def _payload_match(chance: random.Random) -> PayloadMatch:
    word = chance.choice(WORDS)
    offset = chance.choice((None, None, 0, 4, 12))
    if chance.random() < 0.2:
        return PayloadMatch(WORDS[1], offset, None, "www.example.com.")
    mask = bytes(chance.choice((255, 255, 0xDF, 0)) for _ in word) if chance.random() < 0.3 else None
    return PayloadMatch(word, offset, mask)


def _prefixes(chance: random.Random) -> tuple[Prefix, ...]:
    count = chance.randrange(1, 12)
    found = []
    for _ in range(count):
        source = Prefix.parse(chance.choice((*SOURCES4, *SOURCES6)))
        length = chance.randrange(8, source.bits + 1)
        found.append(Prefix.of_columns(source.family, source.hi, source.lo, length))
    return tuple(found)
