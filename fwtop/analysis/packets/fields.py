"""The fields that a packet filter can name, read from the columns of a batch, and the tests made of them.

Names and meanings are Wireshark's (https://www.wireshark.org/docs/dfref/). As there, an ICMP error also has
the fields of the packet that it quotes, so a field can have several values in one packet.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from fwtop.analysis.window.traffic import Rows, ip_start
from fwtop.model.traffic.packets import FLAG_MALFORMED, FLAG_VLAN, U8, Fragment, Mask, PacketBatch
from fwtop.model.traffic.protocols import TCP_FLAGS
from fwtop.parse.general import MAX_VLAN_TAGS, VLAN_TYPES, be16
from fwtop.parse.packets import parse_packets

Values = NDArray[Any]
Found = tuple[Mask, Values]  # where the field is present, and its value there
Present = Callable[[PacketBatch], Mask]  # where a protocol is present
_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FRAGMENT_BITS = 6  # offset in the IPv4 header
_TCP, _UDP = 6, 17
_QUOTING = {1: (3, 4, 5, 11, 12), 58: (1, 2, 3, 4)}  # types of ICMP errors (RFC 792, RFC 4443)


class Type(Enum):
    """What a field can be compared with."""

    PROTOCOL = "protocol"  # is there or not
    NUMBER = "number"
    BOOLEAN = "boolean"
    IPV4 = "IPv4 address"
    IPV6 = "IPv6 address"
    BYTES = "bytes"
    TEXT = "text"


class Headers(Struct, frozen=True):
    """Packets, or those that ICMP errors quote, with their rows in the whole batch."""

    packets: PacketBatch
    rows: Rows
    quoted: bool = False
    texts: dict[str, NDArray[np.str_]] = field(default_factory=dict)  # fwtop's own fields


class Field(Struct, frozen=True):
    """A field: `read` returns all its values in a batch."""

    name: str
    type: Type
    read: Callable[[Headers], Sequence[Found]]
    most: int = 0  # the greatest number it can hold
    quoted: bool = True  # also read from packets that ICMP errors quote


def headers_of(packets: PacketBatch, texts: dict[str, NDArray[np.str_]]) -> tuple[Headers, ...]:
    """Return the packets' own headers, and those that ICMP errors quote."""
    own = Headers(packets, np.arange(len(packets)), texts=texts)
    quoted = _quoted(packets)
    return (own,) if quoted is None else (own, quoted)


def _quoted(packets: PacketBatch) -> Headers | None:
    errors = np.zeros(len(packets), np.bool_)
    for protocol, types in _QUOTING.items():
        errors |= (packets.protocol == protocol) & np.isin(packets.icmp_type, types)
    rows = np.flatnonzero(errors & (packets.fragment != Fragment.LATER) & (packets.payload_offset > 0))
    if not len(rows):
        return None
    start = packets.payload_offset[rows].astype(np.int64)
    size = np.clip(packets.captured[rows] - start, 0, None)
    width = packets.data.shape[1]
    places = np.minimum(start[:, None] + np.arange(width), width - 1)
    data = packets.data[rows[:, None], places]
    data[np.arange(width) >= size[:, None]] = 0
    inner = parse_packets(
        data,
        size.astype(np.uint16),
        link=0,
        length=size.astype(np.uint32),
        time_ns=packets.time_ns[rows],
        weight=packets.weight[rows],
        hook=packets.hook[rows],
    )
    return Headers(inner, rows, quoted=True)


def _ipv4(packets: PacketBatch) -> Mask:
    return np.asarray(packets.family == 4)


def _ipv6(packets: PacketBatch) -> Mask:
    return np.asarray(packets.family == 6)


def _ip_protocol(number: int, packets: PacketBatch) -> Mask:
    whole = (packets.fragment != Fragment.LATER) & (packets.flags & FLAG_MALFORMED == 0)
    return np.asarray((packets.family != 0) & (packets.protocol == number) & whole)


def _ethertype(number: int, packets: PacketBatch) -> Mask:
    return np.asarray(packets.ethertype == number)


def _tagged(packets: PacketBatch) -> Mask:
    return np.asarray(packets.flags & FLAG_VLAN != 0)


def _everything(packets: PacketBatch) -> Mask:
    return np.ones(len(packets), np.bool_)


_tcp = partial(_ip_protocol, _TCP)
_udp = partial(_ip_protocol, _UDP)
_icmp = partial(_ip_protocol, 1)
_icmpv6 = partial(_ip_protocol, 58)


def _tcp_whole(packets: PacketBatch) -> Mask:
    """Mark TCP headers that were captured up to their options."""
    return np.asarray(_tcp(packets) & (packets.tcp_header > 0))


def _udp_payload(packets: PacketBatch) -> Mask:
    return np.asarray(_udp(packets) & (packets.payload_length > 0))


def _dns(packets: PacketBatch) -> Mask:
    """Mark UDP with a payload from or to port 53; DNS over TCP needs whole streams."""
    return np.asarray(_udp_payload(packets) & ((packets.sport == 53) | (packets.dport == 53)))


def _columns(names: Sequence[str], present: Present, headers: Headers) -> list[Found]:
    there = present(headers.packets)
    return [(there, getattr(headers.packets, name)) for name in names]


def _addresses(sides: Sequence[str], present: Present, headers: Headers) -> list[Found]:
    """Return addresses as columns of two 64-bit numbers."""
    packets = headers.packets
    there = present(packets)
    halves = ((getattr(packets, f"{side}_hi"), getattr(packets, f"{side}_lo")) for side in sides)
    return [(there, np.stack(both, axis=1)) for both in halves]


def _protocol(present: Present, headers: Headers) -> list[Found]:
    there = present(headers.packets)
    return [(there, there)]


def _flag(bit: int, headers: Headers) -> list[Found]:
    packets = headers.packets
    return [(_tcp_whole(packets), (packets.tcp_flags & bit) != 0)]


def _tcp_flags(headers: Headers) -> list[Found]:
    """Return all twelve bits: the reserved ones are not in the batch's column."""
    packets = headers.packets
    at = packets.payload_offset.astype(np.int64) - packets.tcp_header + 12
    high = _byte(packets, at).astype(np.uint16) & 15
    return [(_tcp_whole(packets), (high << 8) | packets.tcp_flags)]


def _fragment_bits(shift: int, mask: int, headers: Headers) -> list[Found]:
    """Return bits of the 16-bit number in the IPv4 header that tells of fragments."""
    packets = headers.packets
    at = ip_start(packets, np.arange(len(packets))) + _FRAGMENT_BITS
    there = _ipv4(packets) & (packets.payload_offset > 0) & (at > _FRAGMENT_BITS)
    value = _byte(packets, at).astype(np.uint16) << 8 | _byte(packets, at + 1)
    return [(np.asarray(there), (value >> shift) & mask)]


def _byte(packets: PacketBatch, at: NDArray[np.int64]) -> U8:
    good = (at >= 0) & (at < packets.captured)
    value = np.zeros(len(packets), np.uint8)
    value[good] = packets.data[np.flatnonzero(good), at[good]]
    return value


def _vlan_ids(headers: Headers) -> list[Found]:
    """Return the ids of all tags of a frame."""
    packets = headers.packets
    found: list[Found] = []
    present = _tagged(packets)
    for at in range(12, min(12 + 4 * MAX_VLAN_TAGS, packets.data.shape[1] - 3), 4):
        present = present & np.isin(be16(packets.data, at), VLAN_TYPES) & (packets.captured >= at + 4)
        found.append((np.asarray(present), be16(packets.data, at + 2) & 0xFFF))
    return found


def _whole_frame(headers: Headers) -> list[Found]:
    end = headers.packets.captured.astype(np.int64)
    return [(_everything(headers.packets), np.stack((np.zeros_like(end), end), axis=1))]


def _payload(present: Present, headers: Headers) -> list[Found]:
    packets = headers.packets
    start = packets.payload_offset.astype(np.int64)
    end = np.minimum(start + packets.payload_length, packets.captured)
    there = present(packets) & (packets.payload_length > 0)
    return [(np.asarray(there), np.stack((start, end), axis=1))]


def _text(name: str, headers: Headers) -> list[Found]:
    values = headers.texts.get(name)
    return [] if values is None else [(np.asarray(values != ""), values)]


_PROTOCOLS: dict[str, Present] = {
    "ip": _ipv4, "ipv6": _ipv6, "tcp": _tcp, "udp": _udp, "icmp": _icmp, "icmpv6": _icmpv6,
    "igmp": partial(_ip_protocol, 2), "gre": partial(_ip_protocol, 47), "esp": partial(_ip_protocol, 50),
    "sctp": partial(_ip_protocol, 132), "arp": partial(_ethertype, 0x0806), "vlan": _tagged, "dns": _dns,
}  # fmt: skip
_COLUMNS: tuple[tuple[str, tuple[str, ...], Present, int], ...] = (  # the last: bits of the number
    ("frame.len", ("length",), _everything, 32),
    ("ip.ttl", ("ttl",), _ipv4, 8),
    ("ip.len", ("ip_length",), _ipv4, 16),
    ("ip.id", ("ip_id",), _ipv4, 16),
    ("ip.proto", ("protocol",), _ipv4, 8),
    ("ipv6.hlim", ("ttl",), _ipv6, 8),
    ("tcp.srcport", ("sport",), _tcp, 16),
    ("tcp.dstport", ("dport",), _tcp, 16),
    ("tcp.port", ("sport", "dport"), _tcp, 16),
    ("tcp.hdr_len", ("tcp_header",), _tcp_whole, 8),
    ("tcp.window_size_value", ("tcp_window",), _tcp_whole, 16),
    ("tcp.seq_raw", ("tcp_seq",), _tcp_whole, 32),
    ("tcp.len", ("payload_length",), _tcp_whole, 32),
    ("udp.srcport", ("sport",), _udp, 16),
    ("udp.dstport", ("dport",), _udp, 16),
    ("udp.port", ("sport", "dport"), _udp, 16),
    ("icmp.type", ("icmp_type",), _icmp, 8),
    ("icmp.code", ("icmp_code",), _icmp, 8),
    ("icmpv6.type", ("icmp_type",), _icmpv6, 8),
    ("icmpv6.code", ("icmp_code",), _icmpv6, 8),
)
_OWN = ("frame.len", "tcp.seq_raw", "tcp.len", "arp", "vlan")  # which Wireshark reads from no quoted packet
_FLAG_NAMES = {"RST": "reset", "PSH": "push"}
_SIDES = {"src": ("src",), "dst": ("dst",), "addr": ("src", "dst")}
_ALL = (
    *(
        Field(name, Type.NUMBER, partial(_columns, columns, present), (1 << bits) - 1, name not in _OWN)
        for name, columns, present, bits in _COLUMNS
    ),
    Field("tcp.flags", Type.NUMBER, _tcp_flags, 0xFFFF),
    Field("ip.frag_offset", Type.NUMBER, partial(_fragment_bits, 0, 0x1FFF), 0xFFFF),
    Field("vlan.id", Type.NUMBER, _vlan_ids, 0xFFFF, quoted=False),
    *(
        Field(f"tcp.flags.{_FLAG_NAMES.get(flag, flag.lower())}", Type.BOOLEAN, partial(_flag, bit), 1)
        for flag, bit in TCP_FLAGS.items()
        if flag not in ("ECE", "CWR")  # Wireshark has renamed these
    ),
    Field("ip.flags.df", Type.BOOLEAN, partial(_fragment_bits, 14, 1), 1),
    Field("ip.flags.mf", Type.BOOLEAN, partial(_fragment_bits, 13, 1), 1),
    *(
        Field(f"{name}.{end}", kind, partial(_addresses, sides, _PROTOCOLS[name]))
        for name, kind in (("ip", Type.IPV4), ("ipv6", Type.IPV6))
        for end, sides in _SIDES.items()
    ),
    *(
        Field(name, Type.PROTOCOL, partial(_protocol, present), quoted=name not in _OWN)
        for name, present in _PROTOCOLS.items()
    ),
    Field("frame", Type.BYTES, _whole_frame, quoted=False),
    Field("tcp.payload", Type.BYTES, partial(_payload, _tcp), quoted=False),
    Field("udp.payload", Type.BYTES, partial(_payload, _udp)),
    Field("fwtop.verdict", Type.TEXT, partial(_text, "fwtop.verdict"), quoted=False),
    Field("fwtop.who", Type.TEXT, partial(_text, "fwtop.who"), quoted=False),
)
FIELDS = {field.name: field for field in _ALL}


class Network(Struct, frozen=True):
    """An address or prefix: its upper and lower 64 bits, and the masks of both."""

    hi: int
    lo: int
    mask_hi: int
    mask_lo: int


class Span(Struct, frozen=True):
    """An inclusive range of numbers; a single one has equal ends."""

    low: int
    high: int


Value = Network | Span | bytes | str
Test = Callable[[Sequence[Headers]], Mask]  # marks the packets that it selects


def present(field: Field) -> Test:
    """Test whether a packet has the field."""
    return partial(_any, field, lambda found, _: found[0])


def compare(field: Field, relation: str, values: tuple[Value, ...] = (), bits: int | None = None) -> Test:
    """Test whether any value of the field is in this relation to one of `values`; "!=": none is equal.

    Relations are ==, !=, <, <=, >, >=, in, contains, and "&": any of the bits is set. With `bits`, only these
    are compared.
    """
    if relation == "!=":
        there, equal = present(field), compare(field, "==", values, bits)
        return lambda headers: there(headers) & ~equal(headers)

    def holds(found: Found, packets: PacketBatch) -> Mask:
        there, have = found
        if relation == "contains" and field.type is Type.BYTES:
            return _contains(values[0], packets, have, there)
        if relation == "contains":
            return np.asarray(there & (np.char.find(have, str(values[0])) >= 0))
        if bits is not None:
            have = have & have.dtype.type(bits & int(np.iinfo(have.dtype).max))
        if relation == "&":
            return np.asarray(there & (have != 0))
        return np.asarray(there & np.logical_or.reduce([_relates(relation, have, one) for one in values]))

    return partial(_any, field, holds)


def _any(field: Field, test: Callable[[Found, PacketBatch], Mask], headers: Sequence[Headers]) -> Mask:
    """Mark the rows in which the test holds for any value of the field."""
    marked = np.zeros(len(headers[0].rows), np.bool_)
    for part in headers:
        for found in field.read(part) if field.quoted or not part.quoted else ():
            if found[0].any():
                marked[part.rows[test(found, part.packets)]] = True
    return marked


def _relates(relation: str, values: Values, value: Value) -> Mask:
    if isinstance(value, Network):
        hi = (values[:, 0] & np.uint64(value.mask_hi)) == np.uint64(value.hi)
        return np.asarray(hi & ((values[:, 1] & np.uint64(value.mask_lo)) == np.uint64(value.lo)))
    if isinstance(value, Span):
        if relation == "in":
            return np.asarray((values >= value.low) & (values <= value.high))
        return np.asarray(_ORDER[relation](values.astype(np.int64), value.low))
    return np.asarray(values == value)


def _contains(needle: Value, packets: PacketBatch, spans: Values, rows: Mask) -> Mask:
    """Search each row's bytes between the two offsets of its span."""
    hit = np.zeros(len(packets), np.bool_)
    for row in np.flatnonzero(rows).tolist():
        start, end = spans[row].tolist()
        hit[row] = isinstance(needle, bytes) and needle in packets.data[row, start:end].tobytes()
    return hit
