"""A transport segment put into IP and Ethernet: whole, or cut into fragments."""

from __future__ import annotations

import random
import struct

from fwtop.lab.network import Wire, victim_prefix
from fwtop.lab.template import (
    CONTINUES,
    FRAGMENT_HEADER,
    HALF_8,
    ICMP,
    ID,
    IPV6,
    MIN_FRAME,
    MTU,
    NO_PSEUDO,
    SHOWN,
    TARGET,
    UDP,
    Cut,
    Segment,
    Template,
    checksum,
    word_sum,
)
from fwtop.lab.vectors import Vector
from fwtop.model.address import Prefix


def frames(
    vector: Vector, segment: Segment, wire: Wire, source: Prefix, rng: random.Random
) -> list[Template]:
    """Return the segment's frame, or those of its fragments; raises ValueError where that can't be."""
    target = victim_prefix(vector.family, vector.target)
    room = MTU - (20 if vector.family == 4 else 40)
    size = len(segment.data)
    if size <= room and not vector.fragment and not vector.only_later:
        return [_frame(vector, segment, wire, (source, target), Cut(0, size))]
    step = (room - (0 if vector.family == 4 else 8)) // 8 * 8
    if segment.random_at + segment.random_size > step:
        raise ValueError("payload: the random part must lie in the first fragment")
    number = rng.getrandbits(32)
    if vector.only_later:
        return [_frame(vector, segment, wire, (source, target), Cut(0, min(step, size), step, False, number))]
    cuts = [
        Cut(start, min(step, size - start), start, start + step < size, number)
        for start in range(0, size, step)
    ]
    return [_frame(vector, segment, wire, (source, target), cut) for cut in cuts]


def _frame(vector: Vector, segment: Segment, wire: Wire, ends: tuple[Prefix, Prefix], cut: Cut) -> Template:
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


def _shown(segment: Segment, piece: bytes) -> tuple[int, bytes]:
    """Return the payload's first bytes that no copy changes, from where, at most SHOWN of them."""
    start = segment.header + (2 if segment.rewrite & HALF_8 else 0)
    end = segment.random_at if segment.random_size else len(piece)
    if end <= start:
        start, end = end + segment.random_size, len(piece)
    return start - segment.header, piece[start : min(end, start + SHOWN)]


def _rewrite(vector: Vector, segment: Segment, target: Prefix, cut: Cut, later: bool) -> int:
    rewrite = 0 if later else segment.rewrite
    rewrite |= IPV6 if vector.family == 6 else 0
    rewrite |= 0 if target.is_address else TARGET
    rewrite |= ID if vector.family == 4 and vector.id is None else 0
    rewrite |= NO_PSEUDO if vector.protocol == ICMP else 0
    return rewrite | (CONTINUES if cut.start > 0 else 0)


def _packed(prefix: Prefix) -> bytes:
    return prefix.value.to_bytes(4 if prefix.family == 4 else 16, "big")


def _pseudo(vector: Vector, segment: Segment) -> bytes:
    """Return the pseudo header without its addresses (RFC 9293, RFC 8200); ICMP over IPv4 has none."""
    return b"" if vector.protocol == ICMP else struct.pack("!HH", vector.protocol, len(segment.data))


def _checksummed(vector: Vector, segment: Segment, addresses: bytes) -> bytes:
    if segment.checksum < 0:
        return segment.data
    covered = b"" if vector.protocol == ICMP else addresses
    value = checksum(word_sum(segment.data) + word_sum(_pseudo(vector, segment)) + word_sum(covered))
    if vector.protocol == UDP and value == b"\0\0":
        value = b"\xff\xff"
    return segment.data[: segment.checksum] + value + segment.data[segment.checksum + 2 :]


def _l4_sum(vector: Vector, segment: Segment, target: Prefix) -> int:
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


def _ip(vector: Vector, addresses: bytes, cut: Cut) -> bytes:
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
