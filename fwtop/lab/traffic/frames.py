"""Template frames: a segment in IP and Ethernet, by scapy, with rewriting rules for bpf/flood.c.

A template carries the one's complement sums of its constant words, so that bpf/flood.c completes the
checksums of a copy by adding the words that it wrote (the converse of RFC 1624).
"""

from __future__ import annotations

import random
import struct
import sys

import numpy as np
from msgspec import Struct
from scapy.layers.inet import IP, in4_chksum
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, in6_chksum
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet

from fwtop.lab.network import Wire, victim_prefix
from fwtop.lab.scenario import Vector
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import ICMP, UDP

# The bits of `rewrite` in bpf/flood.h
SPORT, DPORT, ID, WORD_4, WORD_8, TARGET, LETTERS, IPV6 = (1 << bit for bit in range(8))
CONTINUES, WINDOW, HALF_8, NO_PSEUDO = 256, 512, 1024, 2048
MIN_FRAME, FRAME_BYTES = 60, 1536  # without FCS; VLAN tags included
MTU = 1500
FRAGMENT_HEADER = 44
SHOWN = 64  # payload bytes in the truth
_ETHERNET, _VLAN_TAG = 14, 4  # bytes of a header


class Template(Struct, frozen=True):
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
    shown: bytes  # constant payload bytes, which fwtop should find
    shown_at: int  # their offset in the payload
    fragment: bool = False
    later: bool = False

    @property
    def continues(self) -> bool:
        """Whether this is a later fragment of the previous template's packet."""
        return bool(self.rewrite & CONTINUES)


class Segment(Struct, frozen=True):
    """A transport header with its payload."""

    data: bytes
    header: int
    checksum: int  # offset within data; -1: none
    rewrite: int
    drawn: list[slice]  # bytes that differ in each copy
    sport: tuple[int, int] = (0, 1)
    dport: tuple[int, int] = (0, 1)
    random_at: int = 0
    random_size: int = 0


class Cut(Struct, frozen=True):
    """A piece of a segment: `start` and `size` in the data, `at` in the fragment header.

    `id` is None if the packet is not fragmented.
    """

    start: int
    size: int
    at: int = 0
    more: bool = False
    id: int | None = None


def word_sum(data: bytes) -> int:
    """Sum the 16-bit words in native byte order: byte order doesn't matter (RFC 1071, 2 (B))."""
    padded = data + b"\0" if len(data) % 2 else data
    return int(np.frombuffer(padded, np.uint16).sum(dtype=np.uint64))


def checksum(total: int) -> bytes:
    """Fold a sum of words into the two bytes of a checksum."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF).to_bytes(2, sys.byteorder)


def frames(
    vector: Vector, segment: Segment, wire: Wire, source: Prefix, rng: random.Random
) -> list[Template]:
    """Return the frame of a segment, or those of its fragments; raises ValueError."""
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
    """Wrap a segment or fragment in IP and Ethernet; `ends` are source and target."""
    target, network = ends[1], _ip(vector, ends, cut)
    whole = _ip(vector, ends, Cut(0, len(segment.data)))
    piece = _checksummed(vector, segment, whole)[cut.start : cut.start + cut.size]
    head = bytes(_link(vector, wire) / network)
    later, l3, l4 = cut.at > 0, _ETHERNET + _VLAN_TAG * len(vector.vlan), len(head)
    shown_at, shown = (0, piece[:SHOWN]) if later else _shown(segment, piece)
    return Template(
        data=(head + piece).ljust(MIN_FRAME, b"\0"),
        l3=l3,
        l4=l4,
        checksum=0 if later or segment.checksum < 0 else l4 + segment.checksum,
        rewrite=_rewrite(vector, segment, target, cut, later),
        ip_sum=_ip_sum(head[l3:], target, vector.id is None) if vector.family == 4 else 0,
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
    """Return offset and value of the first constant payload bytes, at most SHOWN of them."""
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
    """Return the pseudo header without addresses (RFC 9293, RFC 8200); ICMP over IPv4 has none."""
    return b"" if vector.protocol == ICMP else struct.pack("!HH", vector.protocol, len(segment.data))


def _checksummed(vector: Vector, segment: Segment, network: Packet) -> bytes:
    if segment.checksum < 0:
        return segment.data
    value: bytes = checksum(word_sum(segment.data))
    if vector.protocol != ICMP:
        of_family = in4_chksum if vector.family == 4 else in6_chksum
        value = int(of_family(vector.protocol, network, segment.data)).to_bytes(2, "big")
    if vector.protocol == UDP and value == bytes(2):
        value = b"\xff\xff"
    return segment.data[: segment.checksum] + value + segment.data[segment.checksum + 2 :]


def _l4_sum(vector: Vector, segment: Segment, target: Prefix) -> int:
    """Sum the constant words: all but the drawn bytes, the source, and the target's random part."""
    kept = bytearray(segment.data)
    for part in segment.drawn:
        kept[part] = bytes(part.stop - part.start)
    total = word_sum(bytes(kept)) + word_sum(_pseudo(vector, segment))
    return total if vector.protocol == ICMP else total + word_sum(_kept_target(target))


def _kept_target(target: Prefix) -> bytes:
    """Return the part of the destination that bpf/flood.c does not add itself."""
    if target.is_address:
        return _packed(target)
    return b"" if target.family == 4 else _packed(target)[:8]


def _link(vector: Vector, wire: Wire) -> Packet:
    link = Ether(dst=wire.victim.hex(":"), src=wire.attacker.hex(":"))
    for number, vlan in enumerate(vector.vlan):
        outer = number == 0 and len(vector.vlan) > 1
        link /= (Dot1AD if outer else Dot1Q)(vlan=vlan & 0xFFF)
    return link


def _ip(vector: Vector, ends: tuple[Prefix, Prefix], cut: Cut) -> Packet:
    """Return the headers of a piece, with the length of the whole packet."""
    source, target = (str(prefix).partition("/")[0] for prefix in ends)
    if vector.family == 4:
        number = (cut.id if vector.id is None else vector.id) or 0
        return IP(
            src=source, dst=target, ttl=vector.ttl[0], proto=vector.protocol, id=number & 0xFFFF,
            len=20 + cut.size, flags="MF" if cut.more else 0, frag=cut.at // 8,
        )  # fmt: skip
    head = IPv6(src=source, dst=target, hlim=vector.ttl[0], nh=vector.protocol, plen=cut.size)
    if cut.id is None:
        return head
    head.nh, head.plen = FRAGMENT_HEADER, cut.size + len(IPv6ExtHdrFragment())
    return head / IPv6ExtHdrFragment(nh=vector.protocol, offset=cut.at // 8, m=int(cut.more), id=cut.id)


def _ip_sum(header: bytes, target: Prefix, draw_id: bool) -> int:
    """Sum an IPv4 header without TTL, checksum, source, and id and destination if each copy draws them."""
    kept = bytearray(header)
    kept[8:9] = b"\0"
    kept[10:16] = bytes(6)
    if draw_id:
        kept[4:6] = bytes(2)
    kept[16:20] = bytes(4)  # bpf/flood.c adds the destination only if it draws it
    return word_sum(bytes(kept)) + (word_sum(_packed(target)) if target.is_address else 0)
