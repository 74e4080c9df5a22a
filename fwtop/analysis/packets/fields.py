"""The fields that a packet filter can name, each read from the columns of a batch.

Names and meanings are Wireshark's (https://www.wireshark.org/docs/dfref/). As there, an ICMP error also has
the fields of the packet that it quotes, so a field can have several values in one packet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from fwtop.analysis.window.traffic import Rows, ip_start
from fwtop.model.traffic.packets import FLAG_MALFORMED, FLAG_VLAN, U8, U16, Fragment, Mask, PacketBatch
from fwtop.model.traffic.protocols import TCP_FLAGS
from fwtop.parse.general import MAX_VLAN_TAGS, VLAN_TYPES
from fwtop.parse.packets import parse_packets

Values = NDArray[Any]
Found = tuple[Mask, Values]  # where the field is present, and its value there
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


# -- where a protocol is present


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


# -- values


def _column(name: str, present: Callable[[PacketBatch], Mask], headers: Headers) -> list[Found]:
    return [(present(headers.packets), getattr(headers.packets, name))]


def _ports(present: Callable[[PacketBatch], Mask], headers: Headers) -> list[Found]:
    packets = headers.packets
    there = present(packets)
    return [(there, packets.sport), (there, packets.dport)]


def _addresses(sides: Sequence[str], present: Callable[[PacketBatch], Mask], headers: Headers) -> list[Found]:
    there = present(headers.packets)
    return [(there, _address(headers.packets, side)) for side in sides]


def _address(packets: PacketBatch, side: str) -> Values:
    """Return an address as a column of two 64-bit numbers."""
    return np.stack((getattr(packets, f"{side}_hi"), getattr(packets, f"{side}_lo")), axis=1)


def _protocol(present: Callable[[PacketBatch], Mask], headers: Headers) -> list[Found]:
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


def _ip_word(offset: int, shift: int, mask: int, headers: Headers) -> list[Found]:
    """Return bits of a 16-bit number in the IPv4 header."""
    packets = headers.packets
    at = ip_start(packets, np.arange(len(packets))) + offset
    there = _ipv4(packets) & (packets.payload_offset > 0) & (at > offset)
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
    for depth in range(MAX_VLAN_TAGS):
        at = 12 + 4 * depth
        if packets.data.shape[1] < at + 4:
            break
        present = present & np.isin(_be16(packets.data, at), VLAN_TYPES) & (packets.captured >= at + 4)
        found.append((np.asarray(present), _be16(packets.data, at + 2) & 0xFFF))
    return found


def _be16(data: U8, at: int) -> U16:
    return np.asarray(data[:, at].astype(np.uint16) << 8 | data[:, at + 1], np.uint16)


def _whole_frame(headers: Headers) -> list[Found]:
    packets = headers.packets
    span = np.stack((np.zeros(len(packets), np.int64), packets.captured.astype(np.int64)), axis=1)
    return [(_everything(packets), span)]


def _payload(present: Callable[[PacketBatch], Mask], headers: Headers) -> list[Found]:
    packets = headers.packets
    start = packets.payload_offset.astype(np.int64)
    end = np.minimum(start + packets.payload_length, packets.captured)
    there = present(packets) & (packets.payload_length > 0)
    return [(np.asarray(there), np.stack((start, end), axis=1))]


def _text(name: str, headers: Headers) -> list[Found]:
    values = headers.texts.get(name)
    if values is None:
        return []
    return [(np.asarray(values != ""), values)]


# -- the table


def _numbers() -> list[Field]:
    columns = (
        ("frame.len", "length", _everything, 32),
        ("ip.ttl", "ttl", _ipv4, 8),
        ("ip.len", "ip_length", _ipv4, 16),
        ("ip.id", "ip_id", _ipv4, 16),
        ("ip.proto", "protocol", _ipv4, 8),
        ("ipv6.hlim", "ttl", _ipv6, 8),
        ("tcp.srcport", "sport", _tcp, 16),
        ("tcp.dstport", "dport", _tcp, 16),
        ("tcp.hdr_len", "tcp_header", _tcp_whole, 8),
        ("tcp.window_size_value", "tcp_window", _tcp_whole, 16),
        ("tcp.seq_raw", "tcp_seq", _tcp_whole, 32),
        ("tcp.len", "payload_length", _tcp_whole, 32),
        ("udp.srcport", "sport", _udp, 16),
        ("udp.dstport", "dport", _udp, 16),
        ("icmp.type", "icmp_type", _icmp, 8),
        ("icmp.code", "icmp_code", _icmp, 8),
        ("icmpv6.type", "icmp_type", _icmpv6, 8),
        ("icmpv6.code", "icmp_code", _icmpv6, 8),
    )
    own = ("frame.len", "tcp.seq_raw", "tcp.len")  # Wireshark doesn't read the others from quoted packets
    found = [
        Field(name, Type.NUMBER, partial(_column, column, present), (1 << bits) - 1, name not in own)
        for name, column, present, bits in columns
    ]
    others: tuple[tuple[str, Callable[[Headers], Sequence[Found]], int, bool], ...] = (
        ("tcp.port", partial(_ports, _tcp), 16, True),
        ("udp.port", partial(_ports, _udp), 16, True),
        ("tcp.flags", _tcp_flags, 16, True),
        ("ip.frag_offset", partial(_ip_word, 6, 0, 0x1FFF), 16, True),
        ("vlan.id", _vlan_ids, 16, False),
    )
    return found + [
        Field(name, Type.NUMBER, read, (1 << bits) - 1, quoted) for name, read, bits, quoted in others
    ]


def _booleans() -> list[Field]:
    names = {"RST": "reset", "PSH": "push"}
    found = [
        Field(f"tcp.flags.{names.get(flag, flag.lower())}", Type.BOOLEAN, partial(_flag, bit), 1)
        for flag, bit in TCP_FLAGS.items()
        if flag not in ("ECE", "CWR")  # Wireshark has renamed these
    ]
    return [
        *found,
        Field("ip.flags.df", Type.BOOLEAN, partial(_ip_word, 6, 14, 1), 1),
        Field("ip.flags.mf", Type.BOOLEAN, partial(_ip_word, 6, 13, 1), 1),
    ]


def _address_fields() -> list[Field]:
    sides = {"src": ("src",), "dst": ("dst",), "addr": ("src", "dst")}
    return [
        Field(f"{name}.{end}", kind, partial(_addresses, columns, present))
        for name, kind, present in (("ip", Type.IPV4, _ipv4), ("ipv6", Type.IPV6, _ipv6))
        for end, columns in sides.items()
    ]


def _protocols() -> list[Field]:
    named: tuple[tuple[str, Callable[[PacketBatch], Mask]], ...] = (
        ("ip", _ipv4),
        ("ipv6", _ipv6),
        ("tcp", _tcp),
        ("udp", _udp),
        ("icmp", _icmp),
        ("icmpv6", _icmpv6),
        ("igmp", partial(_ip_protocol, 2)),
        ("gre", partial(_ip_protocol, 47)),
        ("esp", partial(_ip_protocol, 50)),
        ("sctp", partial(_ip_protocol, 132)),
        ("arp", partial(_ethertype, 0x0806)),
        ("vlan", _tagged),
        ("dns", _dns),
    )
    return [
        Field(name, Type.PROTOCOL, partial(_protocol, present), quoted=name not in ("arp", "vlan"))
        for name, present in named
    ]


def _others() -> list[Field]:
    return [
        Field("frame", Type.BYTES, _whole_frame, quoted=False),
        Field("tcp.payload", Type.BYTES, partial(_payload, _tcp), quoted=False),
        Field("udp.payload", Type.BYTES, partial(_payload, _udp)),
        Field("fwtop.verdict", Type.TEXT, partial(_text, "fwtop.verdict"), quoted=False),
        Field("fwtop.who", Type.TEXT, partial(_text, "fwtop.who"), quoted=False),
    ]


FIELDS = {
    item.name: item for item in (*_numbers(), *_booleans(), *_address_fields(), *_protocols(), *_others())
}
