"""The arrived packets of a window, prepared for analysis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.window.counting import among, numbered, weights_of
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import (
    F64,
    FLAG_OUTBOUND,
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
    Window,
)
from fwtop.parse.dns_question import Question

Rows = NDArray[np.intp]
_MIX_A, _MIX_B, _MIX_C = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(29))
TCP, UDP, ICMP, ICMP6, IGMP, GRE, ESP = 6, 17, 1, 58, 2, 47, 50
_SEED_BITS = (1 << 64) - 1
_ERRORS = (3, 4, 5, 11, 12)
_LATEST = (1 << 63) - 1  # nanoseconds
_HEAD = 64  # payload bytes that tell protocols apart
_PLACES = 12  # distinct payload offsets
_UNROUTED = (1, 2, 4, 32, 64, 128, 255)  # TTLs as systems and local services send them
_HOST_SHARE = 0.75  # of the packets of a capture made on a host have that host at one end


def mix(left: U64, right: U64) -> U64:
    """Hash two columns into one (the multipliers are those of splitmix64 and xxHash)."""
    with np.errstate(over="ignore"):
        value = (left ^ (right * _MIX_B)) * _MIX_A
        return (value ^ (value >> _MIX_C)) * _MIX_B


def host_key(family: U8, hi: U64, lo: U64) -> U64:
    """Hash each host: its address, of IPv6 the /64 that one may use."""
    return mix(hi, np.where(family == 6, np.uint64(0), lo))


def from_hosts(family: U8, hi: U64, lo: U64, hosts: Sequence[U64]) -> Mask:
    """Mark the addresses that are among some; each of `hosts` holds sorted keys as of `host_key`."""
    source = host_key(family, hi, lo)
    found = np.zeros(len(source), np.bool_)
    for some in hosts:
        found |= among(source, some)
    return found


def chances(n: int, seed: int) -> F64:
    """Return n numbers from 0 to 1 that look random, always the same ones for a seed.

    numpy.random would be another 2 MB in memory, and nothing here needs better ones.
    """
    numbers = mix(np.arange(1, n + 1, dtype=np.uint64), np.full(1, seed & _SEED_BITS, np.uint64))
    return np.asarray((mix(numbers, numbers) >> np.uint64(11)) * 2.0**-53, np.float64)


def shuffled(n: int, seed: int) -> Rows:
    """Return the numbers below n in an order that looks random, always the same one for a seed."""
    return np.argsort(chances(n, seed))


class Traffic(Struct, frozen=True, dict=True):
    """Inbound packets and, in a two-way capture, the outbound ones.

    `weight` is scaled so that its sum, and that of the outbound ones, estimates all packets of the window.
    """

    packets: PacketBatch
    outbound: PacketBatch
    weight: F64
    seconds: float
    started: float
    live: bool
    one_in: float  # mean weight of the samples

    @staticmethod
    def of(window: Window, config: AdviseConfig) -> Traffic:
        """Prepare the arrived packets, at most the configured number of rows, evenly chosen."""
        limit = config.max_rows if window.live else config.max_capture_rows
        packets, scale = subsample(window.arrived, limit)
        outbound = _outbound(packets, window)
        inbound = with_cut_flags(packets.select(~outbound) if outbound.any() else packets)
        if window.live and window.counters.arrived_packets and len(window.arrived):
            # Exact counts take precedence over samples, some of which may be lost
            scale *= window.counters.arrived_packets / float(window.arrived.weight.sum())
        weight, leaving = inbound.weight * scale, packets.select(outbound)
        leaving = replace(leaving, weight=leaving.weight * scale)
        one_in = float(weight.mean()) if len(weight) else 1.0
        seconds = max(window.seconds, 1e-6)
        return Traffic(inbound, leaving, weight, seconds, window.started, window.live, one_in)

    def __len__(self) -> int:
        return len(self.packets)

    @cached_property
    def total(self) -> float:
        """Packets that arrived."""
        return float(self.weight.sum())

    @cached_property
    def both_ways(self) -> float:
        """Packets of the window, outbound ones included: what shares in tables are shares of."""
        return self.total + float(self.outbound.weight.sum())

    @cached_property
    def total_bytes(self) -> float:
        """Bytes that arrived."""
        return float((self.weight * self.packets.length).sum())

    @cached_property
    def source_key(self) -> U64:
        """Hash of each source address."""
        return mix(self.packets.src_hi, self.packets.src_lo)

    @cached_property
    def dest_key(self) -> U64:
        """Hash of each destination address."""
        return mix(self.packets.dst_hi, self.packets.dst_lo)

    @cached_property
    def flow_key(self) -> U64:
        """Hash of each flow: addresses, ports, protocol."""
        packets = self.packets
        return _flow_of(self.source_key, self.dest_key, packets.sport, packets.dport, packets.protocol)

    @cached_property
    def source_id(self) -> Rows:
        """Sources numbered from 0, which makes counting by source cheap."""
        return numbered(self.source_key)

    @cached_property
    def flow_id(self) -> Rows:
        """Flows numbered from 0."""
        return numbered(self.flow_key)

    @cached_property
    def second(self) -> Rows:
        """Seconds that hold packets, numbered from 0: the clock of a capture may jump by years."""
        time = self.packets.time_ns
        since = (time - int(time.min(initial=_LATEST))) // 1_000_000_000
        return numbered(since.astype(np.uint64))

    @cached_property
    def parsed_questions(self) -> dict[bytes, Question | None]:
        """What parsing gave for each DNS message, without its number: several cuts look at the same ones."""
        return {}

    @cached_property
    def name_hashes(self) -> tuple[U64, Mask]:
        """Hashes of the DNS names of packets, and for which of them they are known by now."""
        return np.zeros(len(self), np.uint64), np.zeros(len(self), np.bool_)

    def heads(self, rows: Rows) -> tuple[U8, I64]:
        """Return the first 64 payload bytes of each row, and how many of them are real: see `payload`."""
        self.gather_heads(rows)
        matrix, length = self._heads
        return matrix.take(rows, axis=0), length.take(rows)

    def gather_heads(self, rows: Rows) -> None:
        """Read the heads of rows at once that groups will ask for one after the other."""
        matrix, length = self._heads
        new = rows[length.take(rows) < 0]
        if len(new):
            matrix[new], length[new] = payload(self.packets, new, _HEAD)

    @cached_property
    def _heads(self) -> tuple[U8, I64]:
        """The heads that were read so far; of others the length is -1."""
        return np.zeros((len(self), _HEAD), np.uint8), np.full(len(self), -1, np.int64)

    def of_sources(self, mask: Mask | Rows) -> Mask:
        """Mark all rows that share a source with the given rows."""
        return _members(self.source_id, mask)

    def of_flows(self, mask: Mask | Rows) -> Mask:
        """Mark all rows that share a flow with the given rows."""
        return _members(self.flow_id, mask)

    @cached_property
    def first(self) -> Mask:
        """First fragments: a transport header, and no whole payload."""
        return np.asarray(self.packets.fragment == Fragment.FIRST)

    @cached_property
    def later(self) -> Mask:
        """Later fragments: no transport header."""
        return np.asarray(self.packets.fragment == Fragment.LATER)

    @cached_property
    def group(self) -> Mask:
        """Packets to multicast and broadcast addresses, which are not routed (RFC 5771, 4291, 2644)."""
        packets = self.packets
        four = (packets.dst_lo >> np.uint64(28) == 0xE) | (packets.dst_lo == 0xFFFFFFFF)
        near = packets.src_lo >> np.uint64(8) == packets.dst_lo >> np.uint64(8)
        four |= near & (packets.dst_lo & np.uint64(255) == np.uint64(255))
        return np.asarray(np.where(packets.family == 4, four, packets.dst_hi >> np.uint64(56) == 0xFF))

    @cached_property
    def icmp_errors(self) -> Mask:
        """ICMP errors (RFC 792, 1812 4.3.2.3: types 3, 4, 5, 11, 12; RFC 4443: below 128)."""
        packets = self.packets
        four = (packets.protocol == ICMP) & among(packets.icmp_type, _ERRORS)
        six = (packets.protocol == ICMP6) & (packets.icmp_type < 128)
        return np.asarray((four | six) & ~self.later & (packets.family != 0))

    @cached_property
    def on_link(self) -> Mask:
        """Packets of neighbours: of the same /24 or /64, with a hop limit that no router has lowered."""
        packets = self.packets
        four = packets.src_lo >> np.uint64(8) == packets.dst_lo >> np.uint64(8)
        near = np.where(packets.family == 4, four, packets.src_hi == packets.dst_hi)
        return np.asarray(near & among(packets.ttl, _UNROUTED))

    def rows(self, mask: Mask) -> Rows:
        """Return the row numbers of a mask."""
        return mask.nonzero()[0]

    def share(self, rows: Rows) -> float:
        """Return the rows' part of all arrived packets."""
        return float(self.weight[rows].sum()) / self.total if self.total else 0.0

    def pps(self, rows: Rows) -> float:
        """Return the packets per second of the rows."""
        return float(self.weight[rows].sum()) / self.seconds

    def bps(self, rows: Rows) -> float:
        """Return the bits per second of the rows, link headers included."""
        return float((self.weight[rows] * self.packets.length[rows]).sum()) * 8 / self.seconds


def subsample(packets: PacketBatch, limit: int) -> tuple[PacketBatch, float]:
    """Choose at most `limit` rows, one at random of each equal slice; return also the weight factor.

    Every stretch of time keeps its share. The seed is fixed: the same window gives the same rows.
    """
    n = len(packets)
    if n <= limit:
        return packets, 1.0
    edges = np.arange(limit + 1) * n // limit
    chosen = edges[:-1] + (chances(limit, n) * np.diff(edges)).astype(np.int64)
    return packets.select(chosen), n / limit


def _members(numbers: Rows, mask: Mask | Rows) -> Mask:
    there = np.zeros(int(numbers.max()) + 1 if len(numbers) else 0, np.bool_)
    there[numbers[mask]] = True
    return there[numbers]


def distinct_texts(matrix: U8) -> U64:
    """Hash each row of bytes; the width must be a multiple of 8."""
    words = np.ascontiguousarray(matrix).view("<u8")
    result: U64 = words[:, 0].copy()
    for column in range(1, words.shape[1]):
        result = mix(result, words[:, column])
    return result


def flow_key(packets: PacketBatch, *, reverse: bool = False) -> U64:
    """Hash addresses, ports and protocol; `reverse` gives the key of the answers."""
    here = mix(packets.src_hi, packets.src_lo), packets.sport
    there = mix(packets.dst_hi, packets.dst_lo), packets.dport
    (src, sport), (dst, dport) = (there, here) if reverse else (here, there)
    return _flow_of(src, dst, sport, dport, packets.protocol)


def _flow_of(src: U64, dst: U64, sport: U16, dport: U16, protocol: U8) -> U64:
    ports = protocol.astype(np.uint64) << np.uint64(32) | sport.astype(np.uint64) << np.uint64(16) | dport
    return mix(mix(src, dst), ports)


def payload_texts(packets: PacketBatch, rows: Rows) -> list[bytes]:
    """Return the captured payload of each row."""
    data, width = packets.data.take(rows, axis=0).tobytes(), packets.data.shape[1]
    starts = packets.payload_offset[rows].tolist()
    ends = np.minimum(packets.captured[rows], width).tolist()
    at = range(0, width * len(rows), max(1, width))
    return [data[row + start : row + end] for row, start, end in zip(at, starts, ends, strict=False)]


def payload(packets: PacketBatch, rows: Rows, width: int) -> tuple[U8, I64]:
    """Gather the first `width` bytes of each row's transport payload, zero-padded.

    Returns the matrix (len(rows), width) and how many bytes of each row are real. Bytes beyond the
    snap length or the payload's end are 0 and don't count.
    """
    start = packets.payload_offset[rows].astype(np.int64)
    held = packets.captured[rows].astype(np.int64) - start
    length = np.maximum(np.minimum(np.minimum(held, packets.payload_length[rows]), width), 0)
    data_width = packets.data.shape[1]
    if data_width == 0 or width == 0 or len(rows) == 0:
        return np.zeros((len(rows), width), np.uint8), np.zeros(len(rows), np.int64)
    counts = np.bincount(start)
    places = np.flatnonzero(counts)
    if len(places) > _PLACES:
        flat = rows[:, None] * data_width + np.minimum(start[:, None] + np.arange(width), data_width - 1)
        matrix = packets.data.reshape(-1)[flat]
    else:  # few distinct offsets: copying slices is faster than gathering bytes
        common = int(counts.argmax())
        matrix = _stretch(packets, rows, common, width)
        for place in places[places != common].tolist():
            these = np.flatnonzero(start == place)
            matrix[these] = _stretch(packets, rows[these], place, width)
    if length.min() < width:
        small = np.uint8 if width < 256 else np.int64  # comparing bytes is faster
        matrix *= np.arange(width, dtype=small) < length.astype(small)[:, None]
    return matrix, length


def _stretch(packets: PacketBatch, rows: Rows, place: int, width: int) -> U8:
    """Copy `width` bytes of each row, zeros beyond the captured columns."""
    stretch = packets.data[rows, place : place + width]
    missing = width - stretch.shape[1]
    return np.pad(stretch, ((0, 0), (0, missing))) if missing else stretch


def word(packets: PacketBatch, rows: Rows, at: I64) -> U32:
    """Read a big-endian 32-bit number at an offset of each row's data; 0 if not captured."""
    data_width = packets.data.shape[1]
    good = (at >= 0) & (at + 4 <= packets.captured[rows]) & (at + 4 <= data_width)
    flat, places = packets.data.reshape(-1), rows[good] * data_width + at[good]
    read = np.zeros(len(places), np.uint32)
    for i in range(4):
        read = (read << np.uint32(8)) | flat[places + i]
    value = np.zeros(len(rows), np.uint32)
    value[good] = read
    return value


def ip_start(packets: PacketBatch, rows: Rows) -> I64:
    """Return the offset of the IP header: that of the payload less the length of the headers."""
    headers = packets.ip_length[rows].astype(np.int64) - packets.payload_length[rows]
    return packets.payload_offset[rows].astype(np.int64) - headers


def transport_start(packets: PacketBatch, rows: Rows) -> I64:
    """Return the offset of the transport header; -1 behind IPv6 extension headers."""
    start = ip_start(packets, rows)
    good = (start >= 0) & (start < min(packets.data.shape[1], 1 << 15))
    result = np.full(len(rows), -1, np.int64)
    first = packets.data[rows[good], start[good]]
    version, words = first >> 4, (first & 15).astype(np.int64)
    result[good] = start[good] + np.where(version == 4, words * 4, 40)
    return result


def weighted_top(
    values: U8 | U16 | U32 | U64 | I64, weight: F64, least: float = 0.0
) -> tuple[NDArray[np.generic], F64]:
    """Return the distinct values and their weights, heaviest first; of `least` at least, which costs less."""
    distinct, sums = weights_of(values, weight)
    if least > 0:
        heavy = sums >= least
        distinct, sums = distinct[heavy], sums[heavy]
    order = np.argsort(sums)[::-1]
    return distinct[order], sums[order]


def with_cut_flags(packets: PacketBatch) -> PacketBatch:
    """Recover the flags of truncated TCP headers.

    Flags are in byte 13. If even that is missing (IPv6 at 64 bytes), a header without payload
    of 24, 28, 36, 40 or 44 bytes can only be that of a SYN, by its options: ACKs have 20 or 32.
    """
    cut = ((packets.flags & FLAG_TRUNCATED) != 0) & (packets.tcp_flags == 0) & (packets.protocol == TCP)
    rows = np.flatnonzero(cut & (packets.sport != 0) & among(packets.family, (4, 6)))
    if len(rows) == 0:
        return packets
    width = packets.data.shape[1]
    start = np.where((packets.flags[rows] & FLAG_VLAN) != 0, 18, 14)
    kind = packets.data[rows, np.minimum(start - 2, width - 1)].astype(np.int64) << 8
    kind |= packets.data[rows, np.minimum(start - 1, width - 1)]
    known = among(kind, (0x0800, 0x86DD))  # not behind several tags, or labels
    rows, start = rows[known], start[known]
    words = np.where(packets.family[rows] == 4, packets.data[rows, np.minimum(start, width - 1)] & 15, 10)
    header = words.astype(np.int64) * 4
    at = start + header + 13
    held = (at < packets.captured[rows]) & (at < width)
    flags = packets.tcp_flags.copy()
    flags[rows[held]] = packets.data[rows[held], at[held]]
    syn = ~held & among(packets.ip_length[rows] - header, (24, 28, 36, 40, 44))
    flags[rows[syn]] = 2
    return replace(packets, tcp_flags=flags)


def _outbound(packets: PacketBatch, window: Window) -> Mask:
    """Mark outbound packets: flagged by the capture, or sent from an own address."""
    marked = np.asarray((packets.flags & FLAG_OUTBOUND) != 0)
    if window.live or marked.any() or len(packets) == 0:
        return marked
    return from_addresses(packets, window.own) if window.own else _guessed_outbound(packets)


def from_addresses(packets: PacketBatch, own: Sequence[Prefix]) -> Mask:
    """Mark packets that claim to come from one of these addresses; networks among them don't count."""
    found = np.zeros(len(packets), np.bool_)
    for prefix in own:
        if prefix.is_address:
            same = (packets.src_hi == prefix.hi) & (packets.src_lo == prefix.lo)
            found |= same & (packets.family == prefix.family)
    return found


def _guessed_outbound(packets: PacketBatch) -> Mask:
    """Find the host of a two-way capture: at one end of nearly all packets, and usually the responder."""
    source, dest = mix(packets.src_hi, packets.src_lo), mix(packets.dst_hi, packets.dst_lo)
    ends, weights = weighted_top(np.concatenate([source, dest]), np.tile(packets.weight, 2))
    nowhere = np.zeros(len(packets), np.bool_)
    if weights[0] < _HOST_SHARE * float(packets.weight.sum()):
        return nowhere
    # Whom the first packet of each flow, in either direction, is sent to
    both = np.minimum(flow_key(packets), flow_key(packets, reverse=True))
    order = np.argsort(packets.time_ns, kind="stable")
    asked = dest[order][np.unique(both[order], return_index=True)[1]]
    near = ends[:2][weights[:2] > 0.95 * weights[0]]
    host = max(near.tolist(), key=lambda one: int((asked == np.uint64(one)).sum()))
    from_host, to_host = source == np.uint64(host), dest == np.uint64(host)
    if (from_host & to_host).any() or not to_host.any():
        return nowhere  # its own address as source is spoofed; a mere sender is not the host
    return np.asarray(from_host)
