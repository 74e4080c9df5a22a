"""Features of TCP: packets outside of connections, flows, and requests, plain and inside TLS."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import Group, feature, noted
from fwtop.analysis.measures.general import FEW, of_protocol, sources
from fwtop.analysis.parsers import http
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN
from fwtop.analysis.window.traffic import Rows, word
from fwtop.model.traffic.packets import F64, I64, Mask, PacketBatch
from fwtop.render.numbers import percent

OUTSIDE = "dropping TCP packets outside of connections (conntrack state INVALID)"
_ACK_AT = 8  # of the acknowledgement number in the TCP header (RFC 9293 3.1)
BARE = 5  # words of a TCP header without options
_FIELDS = {
    "tcp_window": "window",
    "tcp_seq": "sequence number",
    "ip_id": "IP id",
    "sport": "source port",
    "ttl": "TTL",
}
LIMIT = "a limit of requests or connections for each source; a signature of the requests"
PARSED = 384  # requests, evenly spaced
_IDLE_NS = 500_000_000  # between two packets of a flow: nobody waits for an answer, or the port came again,
_TIMES, _BUSY_NS = 8.0, 5_000_000  # as after so many times what most take, and this
_EVEN = 0.3  # squared coefficient of variation of the sources' rates: that of real clients is above 1


@feature("fields")
def constants(group: Group) -> float:
    """TCP and IP header fields that have one value, although those of real hosts differ; 20 sources tell."""
    return len(_constants(group))


def constant_fields(group: Group) -> list[str]:
    """Write which fields are constant."""
    found = _constants(group)
    return [f"{percent(share)} have {_FIELDS[name]} {value}" for name, (share, value) in found.items()]


def _constants(group: Group) -> dict[str, tuple[float, int]]:
    """Find the header fields in which one value dominates.

    Linux sets IP ID 0 only in SYN-ACKs and RSTs, IPv6 has IDs only in fragments; TTL 64 or 128 is common on a
    LAN, too. Established connections keep their source port.
    """
    features = group.packets
    if features.sources < 20:
        return {}
    names = [name for name in _FIELDS if name != "sport" or "opening" in group.notes]
    if features.top("family").value != 4:
        names.remove("ip_id")
    found = group.once("constants", lambda: features.constants(tuple(names), 0.9))
    return {name: (top.share, top.value) for name, top in found.items()}


def stray(context: AnalysisContext, mask: Mask) -> Mask:
    """Mark unclaimed packets outside connections that nobody asked for.

    If sampling is dense, only those of sources without any connection.
    """
    stray = mask & context.unclaimed & ~context.tcp.real & ~context.solicited
    return stray if context.sparse else np.asarray(stray & context.unestablished)


match_ack = partial(of_protocol, flags=(SYN | RST | FIN | ACK, ACK))


class Flows(Struct, frozen=True):
    """Statistics of each TCP flow towards this host; arrays with one entry per flow."""

    place: Rows  # of each row
    packets: F64
    data: F64  # packets with payload
    opened: Mask  # its SYN was seen
    completed: Mask
    first: I64
    last: I64


def flows_of(context: AnalysisContext, rows: Rows) -> Flows:
    """Return the statistics of the rows' flows."""
    traffic, tcp = context.traffic, context.tcp
    _, place = np.unique(traffic.flow_id[rows], return_inverse=True)
    size, time = int(place.max()) + 1, traffic.packets.time_ns[rows]
    first, last = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(first, place, time)
    np.maximum.at(last, place, time)
    return Flows(
        place,
        np.bincount(place, minlength=size).astype(np.float64),
        np.bincount(place, traffic.packets.payload_length[rows] > 0, size).astype(np.float64),
        np.bincount(place, tcp.syn[rows], size) > 0,
        np.bincount(place, tcp.completed[rows], size) > 0,
        first,
        last,
    )


def parsed_requests(group: Group) -> list[http.Request]:
    """Parse the requests of a group, at most PARSED of them, evenly spaced."""
    return group.once("parsed", lambda: http.requests(group.context.traffic, group.packets.spread(PARSED)))


def requests_described(group: Group) -> list[str]:
    """Write the most common request line, host and agent."""
    return http.describe(parsed_requests(group))


def fast_rows(features: Features, limit: float) -> Mask:
    """Mark the rows whose source sends more than `limit` packets per second, by its samples."""
    traffic = features.traffic
    inverse = traffic.source_id[features.rows]
    counts = np.maximum(np.bincount(inverse), 1)
    sums = np.bincount(inverse, features.weight)
    # Few samples say little about a rate: take the lower end of the 95 % interval
    lower_bound = 1 - 2 / np.sqrt(counts) if traffic.one_in > 1 else 1.0
    rate = np.where(counts >= 5, sums * lower_bound / max(traffic.seconds, 1.0), 0.0)
    fast = np.asarray((rate > limit)[inverse])
    # If fast sources are common, include those at a quarter of the limit
    return np.asarray((rate > limit / 4)[inverse]) if fast.mean() > 0.3 else fast


@feature("connections")
def busy_at_once(group: Group) -> float:
    """Connections that a source keeps busy at once, in the mean; unknown in a thin sample.

    Who waits for answers occupies no more of a server than that, however fast it asks.
    """
    context, rows = group.context, group.packets.rows
    if context.sparse or not len(rows):
        return math.nan
    traffic = context.traffic
    mine = traffic.rows(traffic.of_flows(rows))
    time, flow = traffic.packets.time_ns[mine], traffic.flow_id[mine]
    order = np.lexsort((time, flow))
    passed = np.diff(time[order])[np.diff(flow[order]) == 0]
    if not len(passed):
        return math.nan
    longest = min(max(_TIMES * float(np.quantile(passed, 0.75)), _BUSY_NS), _IDLE_NS)
    return (
        float(passed[passed < longest].sum()) / max(float(np.ptp(time)), 1.0) / max(1, group.packets.sources)
    )


def acknowledged(group: Group) -> NDArray[np.int32]:
    """Return the bytes that clients acknowledge between two packets of a flow; none of a thin sample."""
    traffic, rows = group.context.traffic, group.packets.rows
    if group.context.sparse:
        return np.zeros(0, np.int32)
    packets, flow = traffic.packets, traffic.flow_id[rows]
    at = packets.payload_offset[rows].astype(np.intp) - packets.tcp_header[rows] + _ACK_AT
    order = np.lexsort((packets.time_ns[rows], flow))
    same = flow[order][1:] == flow[order][:-1]
    return np.asarray(np.diff(word(packets, rows, at)[order]).view(np.int32)[same], np.int32)  # modulo 2^32


@feature("share")
def after_answers(group: Group) -> float:
    """Part of a connection's requests before which something was received since the one before.

    Who floods goes on without one. Between two of a sample others are missing; unknown in a thin one.
    """
    steps, kept = acknowledged(group), 1 / max(group.context.traffic.one_in, 1.0)
    if not len(steps):
        return math.nan
    none = float((steps <= 0).mean())
    return 1 - none / (kept + none * (1 - kept))


BY_FEW = (  # what speaks for programs, or people behind an address, and against a flood
    sources.says(1, 2.5, FEW, 0.0),
    busy_at_once.says(8, 1.5, 40, -4.0),
)


def usual_payloads(context: AnalysisContext, like: Callable[[PacketBatch, Rows], Mask]) -> float | None:
    """Return the normal rate of such payloads; None where nothing is known, as in a capture."""
    known = context.baseline.ready and context.traffic.live
    return context.baseline.rate_of_payloads(like) if known else None


def outside_connections(context: AnalysisContext, features: Features) -> bool:
    """Check for packets without connections: one per flow, and hardly any SYN."""
    tcp, weight = context.tcp, context.traffic.weight
    real = float(tcp.real[features.rows].mean())
    openings = float(weight[tcp.syn].sum())
    if context.sparse:  # in a thin sample, bare ACKs of clients show connections
        bare = tcp.ack & (context.traffic.packets.payload_length == 0)
        openings += 0.2 * float(weight[bare].sum())
    return real < 0.1 and features.flow_singles > 0.8 and openings < 0.1 * features.packets


def with_connections(context: AnalysisContext, features: Features) -> Rows:
    """Return the flood's rows with all TCP packets of the same clients to the same ports."""
    traffic = context.traffic
    clients = traffic.of_sources(features.rows)
    ports = among(traffic.packets.dport, traffic.packets.dport[features.rows])
    return traffic.rows(context.tcp.tcp & context.unclaimed & clients & ports)


def with_their_connections(group: Group) -> Rows:
    """Claim all TCP packets of the same clients to the same ports, if they have connections."""
    if outside_connections(group.context, group.packets):
        return group.packets.rows
    return group.once("connections", lambda: with_connections(group.context, group.packets))


@feature("yes or no")
def even_sources(group: Group) -> float:
    """Whether twenty or more sources send about as much; of real clients, a few send most."""
    features = group.packets
    return features.sources >= 20 and features.n >= 2 * features.sources and features.evenness < _EVEN


@feature("share")
def forwarded(group: Group) -> float:
    """Part of the requests that tell for whom a proxy asks, in the header fields that were captured."""
    parsed = parsed_requests(group)
    return sum(request.forwarded for request in parsed) / max(1, len(parsed))


records_alike = noted(
    "records_alike", "share",
    "Part of the records with one of the two most common sizes: the same request again and again.",
    note="one_size",
)  # fmt: skip
