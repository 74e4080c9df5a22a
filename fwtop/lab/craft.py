"""Template packets: whole valid frames, and what the kernel rewrites in each copy.

A template is a correct packet in itself (a test has scapy dissect every one). Beside it stand the one's
complement sums of all that stays the same, so that bpf/flood.c completes the checksums of a copy by adding
the words that it wrote (RFC 1624 turned round).
"""

from __future__ import annotations

import random
import struct
import sys
from dataclasses import dataclass

import numpy as np

from fwtop.lab import payloads
from fwtop.lab.network import Wire, victim_prefix
from fwtop.lab.vectors import Vector
from fwtop.model.address import Prefix

# The bits of `rewrite` in bpf/flood.c
SPORT, DPORT, ID, WORD_4, WORD_8, TARGET, LETTERS, IPV6 = (1 << bit for bit in range(8))
CONTINUES, WINDOW, HALF_8, NO_PSEUDO = 256, 512, 1024, 2048
MIN_FRAME, FRAME_BYTES = 60, 1536  # without FCS; VLAN tags included
MTU = 1500
TCP, UDP, ICMP, ICMPV6, GRE, ESP = 6, 17, 1, 58, 47, 50
FRAGMENT_HEADER = 44
SHOWN = 64  # payload bytes in the truth
# MSS 1460, SACK permitted, timestamps, window scale 7: a Linux client's SYN
_SYN_OPTIONS = bytes.fromhex("020405b40402080a") + bytes(8) + bytes.fromhex("01030307")


@dataclass(frozen=True, slots=True)
class Template:
    """One frame and its rewriting rules; offsets are from the frame's first byte."""

    data: bytes
    l3: int
    l4: int
    checksum: int  # of the transport checksum; 0: none
    rewrite: int
    ip_sum: int
    l4_sum: int
    id_at: int
    sport: tuple[int, int]  # first and count; a fixed port has count 1
    dport: tuple[int, int]
    random_at: int
    random_size: int
    target: Prefix
    shown: bytes  # the constant bytes that an observer should find in the payload, and their offset in it
    shown_at: int
    fragment: bool = False
    later: bool = False

    @property
    def continues(self) -> bool:
        """Whether it belongs to the packet before it."""
        return bool(self.rewrite & CONTINUES)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A transport header with its payload, before it is put into IP."""

    data: bytes
    header: int
    checksum: int  # offset within data; -1: none
    rewrite: int
    payload: bytes
    drawn: list[slice]  # bytes that each copy has anew
    sport: tuple[int, int] = (0, 1)
    dport: tuple[int, int] = (0, 1)
    random_at: int = 0
    random_size: int = 0


@dataclass(frozen=True, slots=True)
class _Cut:
    """A piece of a segment, and where its fragment header says that it lies; id None: not fragmented."""

    start: int
    size: int
    at: int = 0
    more: bool = False
    id: int | None = None


def word_sum(data: bytes) -> int:
    """Sum the 16-bit words in the machine's byte order (RFC 1071, 2 (B)): any order folds to the same."""
    padded = data + b"\0" if len(data) % 2 else data
    return int(np.frombuffer(padded, np.uint16).sum(dtype=np.uint64))


def checksum(total: int) -> bytes:
    """Fold a sum of words into the two bytes of a checksum."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF).to_bytes(2, sys.byteorder)


def templates(vector: Vector, wire: Wire, source: Prefix, rng: random.Random) -> list[Template]:
    """Return a vector's templates in the order in which they are sent; a fragmented packet is several.

    `source` is an address that the vector may have: templates are complete packets. Raises ValueError.
    """
    made: list[Template] = []
    for sport in _choices(vector.sport.ports, (vector.sport.low, vector.sport.high)):
        for dport in _choices(vector.dport.ports, (vector.dport.low, vector.dport.high)):
            for length in vector.length or (None,):
                for _ in range(vector.variants):
                    segment = _segment(vector, sport, dport, length, rng)
                    made += _frames(vector, segment, wire, source, rng)
    return made


def _choices(ports: tuple[int, ...], span: tuple[int, int]) -> list[tuple[int, int]]:
    return [(port, 1) for port in ports] or [(span[0], span[1] - span[0] + 1)]


def _payload(vector: Vector, length: int | None, rng: random.Random) -> tuple[bytes, int, int, bool]:
    data, at, size, letters = payloads.build(vector.payload, rng)
    if length is None:
        return data, at, size, letters
    if at + size > length:
        raise ValueError(f"length {length} is shorter than the payload's random part")
    return data[:length].ljust(length, b"\0"), at, size, letters


def _segment(
    vector: Vector, sport: tuple[int, int], dport: tuple[int, int], length: int | None, rng: random.Random
) -> _Segment:
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
    return _Segment(
        header + payload, len(header), offset, rewrite, payload, drawn,
        sport if ported else (0, 1), dport if ported else (0, 1), len(header) + at, size,
    )  # fmt: skip


def _drawn_words(vector: Vector, header: bytes, payload: bytes, drawn: list[slice]) -> int:
    """Mark the header words that each copy draws: sequence numbers, windows, ICMP and DNS ids."""
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
        return struct.pack("!HHHH", sport, dport, 8 + size, 0), 6
    if vector.protocol == TCP:
        options = _SYN_OPTIONS if vector.options else b""
        acknowledged = rng.getrandbits(32) if vector.flags & 16 else 0
        window = 64240 if vector.window is None else vector.window
        words = (20 + len(options)) // 4 << 4
        head = struct.pack(
            "!HHIIBBHHH", sport, dport, rng.getrandbits(32), acknowledged, words, vector.flags, window, 0, 0
        )
        return head + options, 16
    if vector.protocol in (ICMP, ICMPV6):
        return struct.pack("!BBHI", *vector.icmp, 0, rng.getrandbits(32)), 2
    return b"", -1


def _frames(
    vector: Vector, segment: _Segment, wire: Wire, source: Prefix, rng: random.Random
) -> list[Template]:
    target = victim_prefix(vector.family, vector.target)
    room = MTU - (20 if vector.family == 4 else 40)
    size = len(segment.data)
    if size <= room and not vector.fragment and not vector.only_later:
        return [_frame(vector, segment, wire, (source, target), _Cut(0, size))]
    step = (room - (0 if vector.family == 4 else 8)) // 8 * 8
    if segment.random_at + segment.random_size > step:
        raise ValueError("payload: the random part must lie in the first fragment")
    number = rng.getrandbits(32)
    if vector.only_later:
        return [
            _frame(vector, segment, wire, (source, target), _Cut(0, min(step, size), step, False, number))
        ]
    cuts = [
        _Cut(start, min(step, size - start), start, start + step < size, number)
        for start in range(0, size, step)
    ]
    return [_frame(vector, segment, wire, (source, target), cut) for cut in cuts]


def _frame(vector: Vector, segment: _Segment, wire: Wire, ends: tuple[Prefix, Prefix], cut: _Cut) -> Template:
    """Put a segment, or a piece of it, into IP and Ethernet; `ends` are source and target."""
    source, target = ends
    addresses = _packed(source) + _packed(target)
    whole = _checksummed(vector, segment, addresses)
    piece = whole[cut.start : cut.start + cut.size]
    link, header = _link(vector, wire), _ip(vector, addresses, cut)
    later, l4 = cut.at > 0, len(link) + len(header)
    shown_at, shown = (0, piece[:SHOWN]) if later else _shown(segment, piece)
    return Template(
        data=(link + header + piece).ljust(MIN_FRAME, b"\0"),
        l3=len(link),
        l4=l4,
        checksum=0 if later or segment.checksum < 0 else l4 + segment.checksum,
        rewrite=_rewrite(vector, segment, target, cut, later),
        ip_sum=_ip_sum(header, target, vector.id is None) if vector.family == 4 else 0,
        l4_sum=_l4_sum(vector, segment, target),
        id_at=l4 - 4 if vector.family == 6 and cut.id is not None else 0,
        sport=(0, 1) if later else segment.sport,
        dport=(0, 1) if later else segment.dport,
        random_at=0 if later else l4 + segment.random_at,
        random_size=0 if later else segment.random_size,
        target=target,
        shown=shown,
        shown_at=shown_at,
        fragment=cut.id is not None,
        later=later,
    )


def _shown(segment: _Segment, piece: bytes) -> tuple[int, bytes]:
    """Return the payload's first bytes that no copy changes, from where, at most SHOWN of them."""
    start = segment.header + (2 if segment.rewrite & HALF_8 else 0)
    end = segment.random_at if segment.random_size else len(piece)
    if end <= start:
        start, end = end + segment.random_size, len(piece)
    return start - segment.header, piece[start : min(end, start + SHOWN)]


def _rewrite(vector: Vector, segment: _Segment, target: Prefix, cut: _Cut, later: bool) -> int:
    rewrite = 0 if later else segment.rewrite
    rewrite |= IPV6 if vector.family == 6 else 0
    rewrite |= 0 if target.is_address else TARGET
    rewrite |= ID if vector.family == 4 and vector.id is None else 0
    rewrite |= NO_PSEUDO if vector.protocol == ICMP else 0
    return rewrite | (CONTINUES if cut.start > 0 else 0)


def _packed(prefix: Prefix) -> bytes:
    return prefix.value.to_bytes(4 if prefix.family == 4 else 16, "big")


def _pseudo(vector: Vector, segment: _Segment) -> bytes:
    """Return the pseudo header without its addresses (RFC 9293, RFC 8200); ICMP over IPv4 has none."""
    return b"" if vector.protocol == ICMP else struct.pack("!HH", vector.protocol, len(segment.data))


def _checksummed(vector: Vector, segment: _Segment, addresses: bytes) -> bytes:
    if segment.checksum < 0:
        return segment.data
    covered = b"" if vector.protocol == ICMP else addresses
    value = checksum(word_sum(segment.data) + word_sum(_pseudo(vector, segment)) + word_sum(covered))
    if vector.protocol == UDP and value == b"\0\0":
        value = b"\xff\xff"
    return segment.data[: segment.checksum] + value + segment.data[segment.checksum + 2 :]


def _l4_sum(vector: Vector, segment: _Segment, target: Prefix) -> int:
    """Sum what stays the same: all but the drawn bytes, the source, and the target's drawn part."""
    kept = bytearray(segment.data)
    for part in segment.drawn:
        kept[part] = bytes(part.stop - part.start)
    total = word_sum(bytes(kept)) + word_sum(_pseudo(vector, segment))
    return total if vector.protocol == ICMP else total + word_sum(_kept_target(target))


def _kept_target(target: Prefix) -> bytes:
    """Return the part of the destination that the kernel does not add by itself."""
    if target.is_address:
        return _packed(target)
    return b"" if target.family == 4 else _packed(target)[:8]


def _link(vector: Vector, wire: Wire) -> bytes:
    tags = b""
    for number, vlan in enumerate(vector.vlan):
        outer = number == 0 and len(vector.vlan) > 1
        tags += struct.pack("!HH", 0x88A8 if outer else 0x8100, vlan & 0xFFF)
    ethertype = struct.pack("!H", 0x0800 if vector.family == 4 else 0x86DD)
    return wire.victim + wire.attacker + tags + ethertype


def _ip(vector: Vector, addresses: bytes, cut: _Cut) -> bytes:
    if vector.family == 6:
        fragment = b""
        if cut.id is not None:
            fragment = struct.pack("!BBHI", vector.protocol, 0, cut.at | int(cut.more), cut.id)
        following = FRAGMENT_HEADER if fragment else vector.protocol
        head = struct.pack("!IHBB", 6 << 28, cut.size + len(fragment), following, vector.ttl[0])
        return head + addresses + fragment
    number = cut.id if vector.id is None else vector.id
    flags = int(cut.more) << 13 | cut.at // 8
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + cut.size, (number or 0) & 0xFFFF, flags, vector.ttl[0],
                       vector.protocol, 0)  # fmt: skip
    value = checksum(word_sum(head + addresses))
    return head[:10] + value + addresses


def _ip_sum(header: bytes, target: Prefix, draw_id: bool) -> int:
    """Sum an IPv4 header without TTL, checksum, source and whatever else each copy has anew."""
    kept = bytearray(header)
    kept[8:9] = b"\0"
    kept[10:16] = bytes(6)
    if draw_id:
        kept[4:6] = bytes(2)
    kept[16:20] = bytes(4)  # the kernel adds the destination only if it draws it
    return word_sum(bytes(kept)) + (word_sum(_packed(target)) if target.is_address else 0)
