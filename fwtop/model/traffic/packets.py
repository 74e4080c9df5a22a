"""Batches of packets as columns, from parsers to aggregation.

Each field is a numpy array of length n: no Python object per packet.
"""

from __future__ import annotations

from enum import IntEnum
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Hook(IntEnum):
    """Where a packet was sampled; numbered as in bpf/record.h."""

    INGRESS = 1  # tc ingress: what arrived (in a capture: every packet)
    DROP = 2  # skb:kfree_skb: what the kernel dropped, with its reason
    XDP = 3  # dropped by fwtop's XDP program, before tc ingress: also counts as arrived
    ACCEPTED = 4  # NFLOG at the end of the input or forward hook


class Fragment(IntEnum):
    """How a packet is fragmented."""

    NONE = 0
    FIRST = 1  # carries the transport header
    LATER = 2  # has none: ports are 0


# Bits of PacketBatch.flags
FLAG_MALFORMED = 1  # headers are inconsistent; the fields after the inconsistency are 0
FLAG_TRUNCATED = 2  # the sample ends before the headers do
FLAG_VLAN = 4
FLAG_TUNNEL = 8  # GRE, IPIP or similar: `protocol` is the outer one
FLAG_IP_OPTIONS = 16  # IPv4 options or IPv6 extension headers (other than fragment) present
FLAG_OUTBOUND = 32  # captures only: sent by the recording host


class PacketBatch(Struct, frozen=True):
    """Columns of n packets. IPv4 addresses are in `*_lo` as numbers, with `*_hi` 0 and family 4."""

    time_ns: I64  # live: CLOCK_MONOTONIC (bpf_ktime_get_ns); capture: Unix epoch
    weight: F64  # packets that this sample represents (1-in-N × GSO segments); 1.0 in captures
    length: U32  # bytes on the wire of one packet, link header included
    ifindex: U32
    hook: U8  # Hook
    reason: U16  # enum skb_drop_reason when hook is DROP
    rule: U32  # number of the fwtop rule that dropped it (XDP), else 0
    family: U8  # 4, 6, or 0: not IP
    ethertype: U16  # after VLAN tags
    vlan: U16  # outermost VLAN id, 0 without
    src_hi: U64
    src_lo: U64
    dst_hi: U64
    dst_lo: U64
    protocol: U8  # IP protocol after extension headers
    ttl: U8  # TTL or hop limit
    ip_id: U32  # IPv4 identification, or that of the IPv6 fragment header
    ip_length: U16  # total length according to the IP header
    fragment: U8  # Fragment
    sport: U16  # 0 where there is none
    dport: U16
    tcp_flags: U8  # FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128
    tcp_window: U16
    tcp_seq: U32
    tcp_header: U8  # bytes, 20 without options; 0 if not parsed
    icmp_type: U8
    icmp_code: U8
    payload_offset: U16  # where the transport payload starts within `data`
    payload_length: U16  # bytes of transport payload according to the headers
    captured: U16  # valid bytes in the row of `data`
    flags: U8  # FLAG_*
    data: U8  # (n, width): start of each packet including the link header, zero-padded

    def __len__(self) -> int:
        """Return n."""
        return len(self.time_ns)

    def select(self, rows: Mask | NDArray[np.intp] | slice) -> PacketBatch:
        """Return the rows selected by a mask, index array or slice."""
        if isinstance(rows, slice):
            return PacketBatch(*(column[rows] for column in _COLUMNS_OF(self)))
        # Converted once; `take` is twice as fast as indexing
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return PacketBatch(*(column.take(places, axis=0) for column in _COLUMNS_OF(self)))

    @staticmethod
    def empty(width: int = 0) -> PacketBatch:
        """Return a batch of no packets with `data` of shape (0, width)."""
        return PacketBatch.zeros(0, width)

    @staticmethod
    def zeros(n: int, width: int) -> PacketBatch:
        """Return n rows of zeros, including the weight, for a parser to fill in."""
        columns: list[Any] = [np.zeros(n, dtype) for dtype in _DTYPES.values()]
        columns.append(np.zeros((n, width), np.uint8))
        return PacketBatch(*columns)

    @staticmethod
    def concat(batches: list[PacketBatch]) -> PacketBatch:
        """Concatenate batches; `data` gets the greatest width, zero-padded."""
        if len(batches) == 1:
            return batches[0]
        if not batches:
            return PacketBatch.empty()
        width = max(batch.data.shape[1] for batch in batches)
        joined: list[Any] = [np.concatenate([getattr(batch, name) for batch in batches]) for name in _DTYPES]
        data = np.zeros((len(joined[0]), width), np.uint8)
        start = 0
        for batch in batches:
            data[start : start + len(batch), : batch.data.shape[1]] = batch.data
            start += len(batch)
        joined.append(data)
        return PacketBatch(*joined)


# What NDArray annotations mean, by their names
KINDS: dict[str, type[np.generic]] = {
    "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "I64": np.int64, "F64": np.float64,
}  # fmt: skip
_DTYPES = {name: KINDS[kind] for name, kind in PacketBatch.__annotations__.items() if name != "data"}
_COLUMNS_OF = attrgetter(*PacketBatch.__struct_fields__)
