"""The general parser: any stack of headers, vectorised over independent rows.

Each step gathers one header of all rows into a small array (zero behind the end of the sample) and reads it
at fixed offsets. A header that does not fit ends the parsing of its row with a flag. Sources of the link
layer: IEEE 802.1Q and 802.1ad, RFC 2516 (PPPoE), RFC 3032 and 4928 (MPLS).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.model.traffic.packets import (
    FLAG_IP_OPTIONS,
    FLAG_MALFORMED,
    FLAG_TRUNCATED,
    FLAG_VLAN,
    I64,
    U8,
    U16,
    U32,
    U64,
    Fragment,
    Mask,
    PacketBatch,
)

MAX_EXTENSION_HEADERS = 12
_OPTION_HEADERS = (0, 43, 60, 135, 139, 140)  # RFC 6564: next header, length in 8 bytes without the first
_FRAGMENT_HEADER, _AH = 44, 51
_CHAIN = np.isin(np.arange(256), (*_OPTION_HEADERS, _FRAGMENT_HEADER, _AH))
_PORTS = np.isin(np.arange(256), (6, 17, 33, 132, 136))  # TCP, UDP, DCCP, SCTP, UDP-Lite
# Minimum header size; other protocols have their payload right after IP
_HEADER_BYTES = np.zeros(256, np.int64)
_HEADER_BYTES[[6, 17, 33, 132, 136, 1, 58]] = [20, 8, 12, 12, 8, 8, 8]
_OF_RECORD = {"time_ns", "weight", "length", "ifindex", "hook", "reason", "rule", "captured", "data"}
_OUT = [name for name in PacketBatch.__struct_fields__ if name not in _OF_RECORD]
MAX_VLAN_TAGS = 4
MAX_LABELS = 8
VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
PPPOE = 0x8864
MPLS_TYPES = (0x8847, 0x8848)
_SESSION = 0x1100  # version 1, type 1, code 0: session data
_OF_PPP = ((0x0021, 0x0800), (0x0057, 0x86DD))  # PPP protocol, ethertype
_OF_VERSION = ((4, 0x0800), (6, 0x86DD))


def parse_any(
    data: U8, captured: U16, length: I64, wire: I64, rows: NDArray[np.intp]
) -> dict[str, NDArray[Any]]:
    """Parse the given rows of Ethernet frames into those columns of PacketBatch that come from headers.

    `length` is the size of the frame in bytes; an IP packet that ends behind `wire` is malformed.
    """
    parser = _Parser(data, captured[rows].astype(np.int64), length[rows], wire[rows], rows)
    offset = parser.link_layer()
    out = parser.out
    parser.ipv4(np.flatnonzero(out.ethertype == 0x0800), offset)
    parser.ipv6(np.flatnonzero(out.ethertype == 0x86DD), offset)
    parser.transport()
    return {name: getattr(out, name) for name in _OUT}


def with_link_header(data: U8, captured: U16, link: U8) -> tuple[U8, U16]:
    """Prepend a blank Ethernet header with the right ethertype to rows that start with IP (`link` 0)."""
    bare = link != 1
    wider = np.zeros((len(data), data.shape[1] + 14), np.uint8)
    wider[~bare, : data.shape[1]] = data[~bare]
    wider[bare, 14:] = data[bare]
    if data.shape[1]:
        version = np.where(bare & (captured > 0), data[:, 0] >> 4, 0)
        wider[version == 4, 12] = 0x08
        wider[version == 6, 12:14] = (0x86, 0xDD)
    return wider, np.where(bare, captured + 14, captured).astype(np.uint16)


class _Parser:
    """The state of one call: the offset of each row's next header and the end of its IP packet."""

    def __init__(self, data: U8, captured: I64, length: I64, wire: I64, rows: NDArray[np.intp]) -> None:
        self.flat = np.ascontiguousarray(data).reshape(-1)
        self.base = rows.astype(np.int64) * data.shape[1]
        self.captured = captured
        self.length = length
        self.wire = wire
        self.out = PacketBatch.zeros(len(rows), 0)
        self.open = np.zeros(len(rows), np.bool_)  # rows whose transport header is still to be parsed
        self.offset = np.zeros(len(rows), np.int64)  # of the header after IP
        self.end = np.zeros(len(rows), np.int64)  # of the IP packet; may be behind the sample

    def window(self, rows: NDArray[np.intp], offset: I64, size: int) -> U8:
        """Return `size` bytes of each row from its offset, zero behind the end of the sample."""
        out = np.zeros((len(rows), size), np.uint8)
        places = self.base[rows] + offset
        inside = np.flatnonzero(places + size <= len(self.flat))
        if len(inside):
            windows = np.ndarray(len(self.flat) - size + 1, f"V{size}", self.flat, strides=(1,))
            out[inside] = windows[places[inside]].view(np.uint8).reshape(-1, size)
        there = self.captured[rows] - offset
        cut = np.flatnonzero(there < size)
        if len(cut):
            out[cut] *= np.arange(size) < there[cut, None]
        last = cut[places[cut] + size > len(self.flat)]  # beyond the end of the array
        for row in last.tolist():
            taken = self.flat[places[row] : places[row] + max(int(there[row]), 0)]
            out[row, : len(taken)] = taken
        return out

    def short(self, rows: NDArray[np.intp], needed: I64, end: I64) -> Mask:
        """Mark and flag the rows whose header, which ends at `needed`, does not fit.

        It is malformed if it exceeds the packet, else truncated if it exceeds the sample.
        """
        lies = needed > end
        cut = ~lies & (needed > self.captured[rows])
        self.flag(rows[lies], FLAG_MALFORMED)
        self.flag(rows[cut], FLAG_TRUNCATED)
        return lies | cut

    def flag(self, rows: NDArray[np.intp], bit: int) -> None:
        """Set a flag of rows."""
        self.out.flags[rows] |= np.uint8(bit)

    def link_layer(self) -> I64:
        """Parse Ethernet and all headers before IP; returns the offset of the next header."""
        out = self.out
        offset = np.full(len(out), 14, np.int64)
        rows = np.arange(len(out))
        rows = rows[~self.short(rows, offset, self.length)]
        out.ethertype[rows] = be16(self.window(rows, offset[rows] - 2, 2), 0)
        self._tags(rows, offset)
        self._session(np.flatnonzero(out.ethertype == PPPOE), offset)
        self._labels(np.flatnonzero(np.isin(out.ethertype, MPLS_TYPES)), offset)
        return offset

    def _tags(self, rows: NDArray[np.intp], offset: I64) -> None:
        """Skip VLAN tags."""
        out = self.out
        for depth in range(MAX_VLAN_TAGS):
            rows = rows[np.isin(out.ethertype[rows], VLAN_TYPES)]
            if not len(rows):
                return
            rows = rows[~self.short(rows, offset[rows] + 4, self.length[rows])]
            tag = self.window(rows, offset[rows], 4)
            self.flag(rows, FLAG_VLAN)
            if depth == 0:
                out.vlan[rows] = be16(tag, 0) & 0xFFF
            out.ethertype[rows] = be16(tag, 2)
            offset[rows] += 4
        self.flag(rows[np.isin(out.ethertype[rows], VLAN_TYPES)], FLAG_MALFORMED)

    def _session(self, rows: NDArray[np.intp], offset: I64) -> None:
        """Skip PPPoE and PPP headers before IP."""
        rows = rows[~self.short(rows, offset[rows] + 8, self.length[rows])]
        head = self.window(rows, offset[rows], 8)
        right = be16(head, 0) == _SESSION
        self.flag(rows[~right], FLAG_MALFORMED)
        rows, protocol = rows[right], be16(head, 6)[right]
        for number, ethertype in _OF_PPP:
            self.out.ethertype[rows[protocol == number]] = ethertype
            offset[rows[protocol == number]] += 8

    def _labels(self, rows: NDArray[np.intp], offset: I64) -> None:
        """Skip MPLS labels; the first four bits behind the last one tell the IP version."""
        for _ in range(MAX_LABELS):
            rows = rows[~self.short(rows, offset[rows] + 4, self.length[rows])]
            if not len(rows):
                return
            last = (self.window(rows, offset[rows], 4)[:, 2] & 1).astype(np.bool_)
            offset[rows] += 4
            ended = rows[last]
            version = self.window(ended, offset[ended], 1)[:, 0] >> 4
            for number, ethertype in _OF_VERSION:
                self.out.ethertype[ended[version == number]] = ethertype
            rows = rows[~last]
        self.flag(rows, FLAG_MALFORMED)

    def ipv4(self, rows: NDArray[np.intp], offset: I64) -> None:
        """Parse the IPv4 headers at `offset` of the rows."""
        out = self.out
        rows = rows[~self.short(rows, offset[rows] + 20, self.length[rows])]
        head = self.window(rows, offset[rows], 20)
        right = head[:, 0] >> 4 == 4
        self.flag(rows[~right], FLAG_MALFORMED)
        rows, head = rows[right], head[right]
        total = be16(head, 2)
        fragment = be16(head, 6)
        out.family[rows] = 4
        out.src_lo[rows] = be32(head, 12)
        out.dst_lo[rows] = be32(head, 16)
        out.protocol[rows] = head[:, 9]
        out.ttl[rows] = head[:, 8]
        out.ip_id[rows] = be16(head, 4)
        out.ip_length[rows] = total
        out.fragment[rows] = np.where(
            fragment & 0x1FFF, Fragment.LATER, np.where(fragment & 0x2000, Fragment.FIRST, Fragment.NONE)
        )
        header = (head[:, 0] & 15).astype(np.int64) * 4
        self.flag(rows[header > 20], FLAG_IP_OPTIONS)
        # Total length 0: a GSO packet of more than 64 KiB, which ends with the frame
        size = np.where(total == 0, self.length[rows] - offset[rows], total.astype(np.int64))
        self.check_ip(rows, offset[rows], size, header)

    def check_ip(self, rows: NDArray[np.intp], start: I64, size: I64, header: I64) -> None:
        """Check the lengths of IP packets at `start`, and mark the valid ones for further parsing."""
        end = start + size
        wrong = (header < 20) | (size < header) | (end > self.wire[rows])
        self.flag(rows[wrong], FLAG_MALFORMED)
        rows, start, end, header = rows[~wrong], start[~wrong], end[~wrong], header[~wrong]
        self.end[rows] = end
        self.offset[rows] = start + header
        rows = rows[~self.short(rows, start + header, end)]
        self.open[rows] = True

    def ipv6(self, rows: NDArray[np.intp], offset: I64) -> None:
        """Parse the IPv6 headers at `offset` of the rows, and their extension headers."""
        out = self.out
        rows = rows[~self.short(rows, offset[rows] + 40, self.length[rows])]
        head = self.window(rows, offset[rows], 40)
        right = head[:, 0] >> 4 == 6
        self.flag(rows[~right], FLAG_MALFORMED)
        rows, head = rows[right], head[right]
        size = be16(head, 4).astype(np.int64)
        out.family[rows] = 6
        out.src_hi[rows], out.src_lo[rows] = be64(head, 8), be64(head, 16)
        out.dst_hi[rows], out.dst_lo[rows] = be64(head, 24), be64(head, 32)
        out.protocol[rows] = head[:, 6]
        out.ttl[rows] = head[:, 7]
        out.ip_length[rows] = np.minimum(size + 40, 0xFFFF)
        # Payload length 0 but a next header: a jumbogram or a GSO packet
        beyond = (size == 0) & (head[:, 6] != 59)
        size = np.where(beyond, np.maximum(self.length[rows] - offset[rows] - 40, 0), size)
        self.check_ip(rows, offset[rows], size + 40, np.full(len(rows), 40))
        rows = rows[self.open[rows]]
        for _ in range(MAX_EXTENSION_HEADERS):
            rows = rows[self.open[rows]]
            rows = rows[_CHAIN[out.protocol[rows]] & (out.fragment[rows] != Fragment.LATER)]
            if not len(rows):
                return
            self.extension_header(rows)
        rest = rows[self.open[rows]]
        rest = rest[_CHAIN[out.protocol[rest]] & (out.fragment[rest] != Fragment.LATER)]
        self.flag(rest, FLAG_MALFORMED)
        self.open[rest] = False

    def extension_header(self, rows: NDArray[np.intp]) -> None:
        """Skip one extension header of each row."""
        out = self.out
        short = self.short(rows, self.offset[rows] + 8, self.end[rows])
        self.open[rows[short]] = False
        rows = rows[~short]
        head = self.window(rows, self.offset[rows], 8)
        kind = out.protocol[rows]
        units = head[:, 1].astype(np.int64)
        size = np.where(kind == _AH, (units + 2) * 4, np.where(kind == _FRAGMENT_HEADER, 8, (units + 1) * 8))
        self.flag(rows[kind != _FRAGMENT_HEADER], FLAG_IP_OPTIONS)
        fragments = kind == _FRAGMENT_HEADER
        if fragments.any():
            place = be16(head[fragments], 2)
            out.fragment[rows[fragments]] = np.where(
                place & 0xFFF8, Fragment.LATER, np.where(place & 1, Fragment.FIRST, Fragment.NONE)
            )
            out.ip_id[rows[fragments]] = be32(head[fragments], 4)
        out.protocol[rows] = head[:, 0]
        self.offset[rows] += size
        short = self.short(rows, self.offset[rows], self.end[rows])
        self.open[rows[short]] = False

    def transport(self) -> None:
        """Parse the transport headers of the open rows."""
        out = self.out
        rows = np.flatnonzero(self.open)
        whole = out.fragment[rows] != Fragment.LATER
        self.payload(rows[~whole], self.offset[rows[~whole]], self.end[rows[~whole]])
        rows = rows[whole]
        protocol = out.protocol[rows]
        icmp = ((protocol == 1) & (out.family[rows] == 4)) | ((protocol == 58) & (out.family[rows] == 6))
        needed = np.where(_PORTS[protocol] | icmp, _HEADER_BYTES[protocol], 0)
        head = self.window(rows, self.offset[rows], 20)
        there = np.minimum(self.captured[rows], self.end[rows]) - self.offset[rows]
        ports = _PORTS[protocol] & (there >= 4)
        out.sport[rows[ports]], out.dport[rows[ports]] = be16(head[ports], 0), be16(head[ports], 2)
        icmp &= there >= 4
        out.icmp_type[rows[icmp]], out.icmp_code[rows[icmp]] = head[icmp, 0], head[icmp, 1]
        fits = ~self.short(rows, self.offset[rows] + needed, self.end[rows])
        rows, head, protocol, needed = rows[fits], head[fits], protocol[fits], needed[fits]
        tcp, udp = protocol == 6, protocol == 17
        self.tcp(rows[tcp], head[tcp])
        self.udp(rows[udp], head[udp])
        rest = ~(tcp | udp)
        self.payload(rows[rest], self.offset[rows[rest]] + needed[rest], self.end[rows[rest]])

    def tcp(self, rows: NDArray[np.intp], head: U8) -> None:
        """Parse TCP headers."""
        out = self.out
        out.tcp_seq[rows] = be32(head, 4)
        out.tcp_flags[rows] = head[:, 13]
        out.tcp_window[rows] = be16(head, 14)
        out.tcp_header[rows] = head[:, 12] >> 4 << 2
        header = out.tcp_header[rows].astype(np.int64)
        wrong = header < 20
        self.flag(rows[wrong], FLAG_MALFORMED)
        rows, start = rows[~wrong], self.offset[rows[~wrong]] + header[~wrong]
        short = self.short(rows, start, self.end[rows])
        self.payload(rows[~short], start[~short], self.end[rows[~short]])

    def udp(self, rows: NDArray[np.intp], head: U8) -> None:
        """Check the length in UDP headers, which may exceed the packet in a first fragment only."""
        size = be16(head, 4).astype(np.int64)
        room = self.end[rows] - self.offset[rows]
        first = self.out.fragment[rows] == Fragment.FIRST
        wrong = (size != 0) & ((size < 8) | ((size > room) & ~first))
        self.flag(rows[wrong], FLAG_MALFORMED)
        size = np.where((size == 0) | first, room, size)
        rows, size = rows[~wrong], size[~wrong]
        self.payload(rows, self.offset[rows] + 8, self.offset[rows] + size)

    def payload(self, rows: NDArray[np.intp], start: I64, end: I64) -> None:
        """Set the position of the transport payload."""
        self.out.payload_offset[rows] = start
        self.out.payload_length[rows] = np.minimum(end - start, 0xFFFF)


def be16(head: U8, offset: int) -> U16:
    """Return the big-endian 16-bit number at an offset of each row."""
    return head[:, offset : offset + 2].view(">u2")[:, 0].astype(np.uint16)


def be32(head: U8, offset: int) -> U32:
    """Return the big-endian 32-bit number at an offset of each row."""
    return head[:, offset : offset + 4].view(">u4")[:, 0].astype(np.uint32)


def be64(head: U8, offset: int) -> U64:
    """Return the big-endian 64-bit number at an offset of each row."""
    return head[:, offset : offset + 8].view(">u8")[:, 0].astype(np.uint64)
