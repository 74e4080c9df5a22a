"""Template packets of a vector: transport headers, payloads, and the fields that each copy draws anew.

A template is itself a correct packet; a test has scapy dissect every one. A payload consists of constant
pieces, random pieces, and protocol messages, as the scenario describes them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from scapy.layers import inet as scapy_inet

from fwtop.lab.network import Wire
from fwtop.lab.scenario import Vector
from fwtop.lab.traffic import answers
from fwtop.lab.traffic.frames import (
    DPORT,
    HALF_8,
    LETTERS,
    SPORT,
    WINDOW,
    WORD_4,
    WORD_8,
    Segment,
    Template,
    frames,
)
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import ESP, ICMP, ICMPV6, TCP, UDP

# As a Linux client's SYN has them
_SYN_OPTIONS = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (0, 0)), ("NOP", None), ("WScale", 7)]


def templates(vector: Vector, wire: Wire, source: Prefix, rng: random.Random) -> list[Template]:
    """Return a vector's templates in sending order, one for each fragment; raises ValueError.

    `source` is one of the vector's source addresses: templates are complete packets.
    """
    made: list[Template] = []
    for sport in _choices(vector.sport.ports, (vector.sport.low, vector.sport.high)):
        for dport in _choices(vector.dport.ports, (vector.dport.low, vector.dport.high)):
            for length in vector.length or (None,):
                for _ in range(vector.variants):
                    segment = _segment(vector, sport, dport, length, rng)
                    made += frames(vector, segment, wire, source, rng)
    return made


def _choices(ports: tuple[int, ...], span: tuple[int, int]) -> list[tuple[int, int]]:
    return [(port, 1) for port in ports] or [(span[0], span[1] - span[0] + 1)]


def _payload(vector: Vector, length: int | None, rng: random.Random) -> tuple[bytes, int, int, bool]:
    data, at, size, letters = build(vector.payload, rng)
    if length is None:
        return data, at, size, letters
    if at + size > length:
        raise ValueError(f"length {length} is shorter than the payload's random part")
    return data[:length].ljust(length, b"\0"), at, size, letters


def _segment(
    vector: Vector, sport: tuple[int, int], dport: tuple[int, int], length: int | None, rng: random.Random
) -> Segment:
    payload, at, size, letters = _payload(vector, length, rng)
    rewrite = LETTERS if letters else 0
    drawn = []
    if vector.protocol in (TCP, UDP):
        rewrite |= (SPORT if sport[1] > 1 else 0) | (DPORT if dport[1] > 1 else 0)
        drawn += [slice(0, 2)] if sport[1] > 1 else []
        drawn += [slice(2, 4)] if dport[1] > 1 else []
    header, offset = _header(vector, sport[0], dport[0], len(payload), rng)
    rewrite |= _drawn_words(vector, header, payload, drawn)
    if size:
        drawn.append(slice(len(header) + at, len(header) + at + size))
    ported = vector.protocol in (TCP, UDP)
    return Segment(
        header + payload, len(header), offset, rewrite, drawn,
        sport if ported else (0, 1), dport if ported else (0, 1), len(header) + at, size,
    )  # fmt: skip


def _drawn_words(vector: Vector, header: bytes, payload: bytes, drawn: list[slice]) -> int:
    """Return the rewrite bits of randomised header words (TCP sequence, window, ICMP and DNS ids).

    Their slices are appended to `drawn`.
    """
    rewrite = 0
    if vector.protocol == TCP:
        rewrite, words = WORD_4, [slice(4, 8)]
        if vector.flags & 16:
            rewrite, words = rewrite | WORD_8, [*words, slice(8, 12)]
        if vector.window is None:
            rewrite, words = rewrite | WINDOW, [*words, slice(14, 16)]
        drawn += words
    elif vector.protocol in (ICMP, ICMPV6) and vector.icmp[0] in (0, 8, 128, 129):
        rewrite = WORD_4
        drawn.append(slice(4, 8))
    elif vector.protocol == ESP and len(header) + len(payload) >= 16:
        rewrite = WORD_4  # the sequence number; the SPI stays, as within one association
        drawn.append(slice(4, 8))
    elif vector.protocol == UDP and any("dns" in str(part.get("make", "")) for part in vector.payload[:1]):
        rewrite = HALF_8
        drawn.append(slice(8, 10))
    return rewrite


def _header(vector: Vector, sport: int, dport: int, size: int, rng: random.Random) -> tuple[bytes, int]:
    """Return the transport header and the offset of its checksum (-1: none)."""
    if vector.protocol == UDP:
        return bytes(scapy_inet.UDP(sport=sport, dport=dport, len=8 + size, chksum=0)), 6
    if vector.protocol == TCP:
        acknowledged = rng.getrandbits(32) if vector.flags & 16 else 0
        head = scapy_inet.TCP(
            sport=sport, dport=dport, seq=rng.getrandbits(32), ack=acknowledged, flags=vector.flags,
            window=64240 if vector.window is None else vector.window, chksum=0,
            options=_SYN_OPTIONS if vector.options else [],
        )  # fmt: skip
        return bytes(head), 16
    if vector.protocol in (ICMP, ICMPV6):
        return struct.pack("!BBHI", *vector.icmp, 0, rng.getrandbits(32)), 2
    return b"", -1


Maker = Callable[[random.Random, dict[str, Any]], bytes]
MAKERS: dict[str, Maker] = {
    name: made
    for name, made in vars(answers).items()
    if name.endswith(("_response", "_query", "_header", "_initial", "_monlist"))
}


def build(parts: tuple[dict[str, Any], ...], rng: random.Random) -> tuple[bytes, int, int, bool]:
    """Join a payload's pieces; raises ValueError.

    Returns the bytes, offset and length of the piece that is random in each packet, and whether that consists
    of letters. A piece is one of text, hex, random, letters or zeros (number of bytes), dns_label (a random
    label of that many letters, preceded by its length), dns_name, or make (a function of MAKERS).
    """
    data, at, size, letters = b"", 0, 0, False
    for part in parts:
        drawn = next((key for key in ("random", "letters", "dns_label") if key in part), None)
        if drawn is None:
            data += _constant(part, rng)
            continue
        wanted = int(part[drawn])
        if size or wanted % 8 or not 0 < wanted <= 1472 or (drawn == "dns_label" and wanted > 56):
            raise ValueError(f"payload: {drawn} must be given once, and be a multiple of 8 that fits")
        letters = drawn != "random"
        data += bytes([wanted]) if drawn == "dns_label" else b""
        at, size = len(data), wanted
        data += bytes(rng.choices(b"abcdefghijklmnop", k=wanted)) if letters else rng.randbytes(wanted)
    return data, at, size, letters


def _constant(part: dict[str, Any], rng: random.Random) -> bytes:
    if "text" in part:
        return str(part["text"]).encode()
    if "hex" in part:
        return bytes.fromhex(part["hex"])
    if "zeros" in part:
        return bytes(int(part["zeros"]))
    if "dns_name" in part:
        return answers.dns_wire(part["dns_name"])
    maker = MAKERS.get(str(part.get("make")))
    if maker is None:
        raise ValueError(
            f"payload: {sorted(part)[0]!r} is not text, hex, random, letters, zeros, dns_name, make"
        )
    return maker(rng, part)
