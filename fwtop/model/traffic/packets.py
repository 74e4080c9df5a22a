"""A window of traffic: batches of packets as columns, exact counters, and served connections.

Each field of a batch is a numpy array of length n: no Python object per packet.
"""

from __future__ import annotations

from enum import IntEnum
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.service import Service
from fwtop.model.traffic.counters import Counters

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


class TrackedFlows(Struct, frozen=True, eq=False):
    """TCP connections that connection tracking was asked about lately, as hashes (`flows_of_packets`)."""

    asked: U64
    assured: U64  # of these, those whose both ends have answered


class Interval(Struct, frozen=True):
    """What one poll saw: exact arrivals and the samples that came with them."""

    started: float  # Unix seconds
    seconds: float
    packets: int  # arrived, exact
    samples: int  # of arrived packets; 0 also where nobody was watching


class Window(Struct, frozen=True):
    """Weighted samples by hook, and the exact counters of the same interval.

    Of a long capture, `arrived` is a uniform subset with scaled weights: sums of `weight` always estimate
    packets.
    """

    started: float  # Unix seconds
    seconds: float
    arrived: PacketBatch  # hooks INGRESS and XDP
    dropped: PacketBatch  # hook DROP
    accepted: PacketBatch  # hook ACCEPTED
    counters: Counters
    live: bool = True
    own: tuple[Prefix, ...] = ()  # this host's addresses, if known
    intervals: tuple[Interval, ...] = ()  # live: the polls that the window is made of, oldest first
    clock: float | None = None  # Unix seconds minus packet time; None: the first packet came at `started`
    sockets: SocketTable | None = None  # live: the connections that this host serves, as last read
    services: tuple[Service, ...] = ()  # live: as last told
    answering: tuple[tuple[str, str, int], ...] = ()  # live: who was seen to; protocol, address, port
    handshakes_per_s: float | None = None  # live: completed by clients, as the kernel counts them
    tracked: TrackedFlows | None = None  # live: connections, and which of them have completed
    handshakes: tuple[float, int] | None = None  # live: when they were read, monotonic, and since boot


class OriginColumns(Struct, frozen=True):
    """Country (two ASCII letters as a big-endian number, 0 unknown) and AS number (0 unknown)."""

    country: U16
    asn: U32


class OriginLookup(Protocol):
    """Maps addresses to country and autonomous system."""

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        """Look n addresses up."""
        ...

    def as_name(self, asn: int) -> str | None:
        """Return the sanitised name of an autonomous system, if known."""
        ...

    @property
    def stale(self) -> str:
        """The day of the data if that is long ago, else ""."""
        ...


class NoOrigin(Struct, frozen=True):
    """The lookup without a database: every origin is unknown."""

    names: dict[int, str] = field(default_factory=dict)
    stale: str = ""

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:  # noqa: ARG002
        """Return zeros."""
        import numpy as np

        return OriginColumns(np.zeros(len(family), np.uint16), np.zeros(len(family), np.uint32))

    def as_name(self, asn: int) -> str | None:
        """Return a given name, else None."""
        return self.names.get(asn)


class Connections(Struct, frozen=True):
    """Connections that clients opened; one entry each (struct tcp_info, linux/tcp.h)."""

    family: U8
    hi: U64  # the peer's address, as in PacketBatch
    lo: U64
    peer_port: U16
    port: U16  # of the service
    cookie: U64  # the kernel's number of the socket, never used again
    received: U64  # bytes of data
    segments_in: U32  # with data
    segments_out: U32  # with data
    since_received: F64  # seconds since the last data, or since the handshake
    since_sent: F64
    unread: U32  # bytes that the program has not read
    unsent: U32  # bytes that the peer has not acknowledged
    window: U32  # bytes that the peer accepts now
    mss: U32  # bytes of a full segment to the peer
    held: F64  # seconds that sending waited for the peer's window
    seen: F64  # seconds since this connection was first observed: its age at least

    def __len__(self) -> int:
        return len(self.port)

    def select(self, rows: Mask) -> Connections:
        """Return some of them."""
        return Connections(*(getattr(self, name)[rows] for name in self.__struct_fields__))

    @staticmethod
    def empty() -> Connections:
        """Return none."""
        none: list[Any] = [np.zeros(0, KINDS[kind]) for kind in Connections.__annotations__.values()]
        return Connections(*none)


class ListenQueue(Struct, frozen=True):
    """Finished handshakes that wait until a program accepts them."""

    port: int
    waiting: int
    limit: int


class SocketTable(Struct, frozen=True):
    """The served connections of this network namespace at one moment."""

    connections: Connections
    share: float = 1.0  # of all connections, 0 to 1, that were read: a uniform sample of them
    queues: tuple[ListenQueue, ...] = ()
    overflows_per_s: float = 0.0  # handshakes lost because a listen queue was full

    def queue(self, port: int) -> ListenQueue | None:
        """Return the fullest listen queue of a port."""
        found = [item for item in self.queues if item.port == port]
        return max(found, key=lambda item: item.waiting / max(item.limit, 1), default=None)
