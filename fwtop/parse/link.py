"""The link layer: Ethernet, VLAN tags, PPPoE and MPLS; and gathering the bytes of many rows.

Sources: IEEE 802.1Q and 802.1ad, RFC 2516 (PPPoE), RFC 3032 and 4928 (MPLS).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fwtop.model.traffic.packets import (
    FLAG_MALFORMED,
    FLAG_TRUNCATED,
    FLAG_VLAN,
    I64,
    U8,
    U16,
    U32,
    U64,
    Mask,
    PacketBatch,
)

MAX_VLAN_TAGS = 4
MAX_LABELS = 8
VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
PPPOE = 0x8864
MPLS_TYPES = (0x8847, 0x8848)
_SESSION = 0x1100  # version 1, type 1, code 0: session data
_OF_PPP = ((0x0021, 0x0800), (0x0057, 0x86DD))  # PPP protocol, ethertype
_OF_VERSION = ((4, 0x0800), (6, 0x86DD))


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


class LinkParser:
    """Parses rows of Ethernet frames up to the IP header."""

    def __init__(self, data: U8, captured: I64, length: I64, rows: NDArray[np.intp]) -> None:
        self.flat = np.ascontiguousarray(data).reshape(-1)
        self.base = rows.astype(np.int64) * data.shape[1]
        self.captured = captured
        self.length = length
        self.out = PacketBatch.zeros(len(rows), 0)

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
        for row in cut[
            places[cut] + size > len(self.flat)
        ].tolist():  # the last rows: beyond the end of the array
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


def be16(head: U8, offset: int) -> U16:
    """Return the big-endian 16-bit number at an offset of each row."""
    return head[:, offset : offset + 2].view(">u2")[:, 0].astype(np.uint16)


def be32(head: U8, offset: int) -> U32:
    """Return the big-endian 32-bit number at an offset of each row."""
    return head[:, offset : offset + 4].view(">u4")[:, 0].astype(np.uint32)


def be64(head: U8, offset: int) -> U64:
    """Return the big-endian 64-bit number at an offset of each row."""
    return head[:, offset : offset + 8].view(">u8")[:, 0].astype(np.uint64)
