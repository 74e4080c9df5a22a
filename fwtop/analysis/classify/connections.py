"""Connections that are opened to exhaust the server: silent ones, and slow requests.

Sources: RFC 4987 1 (connection floods); Hansen, "Slowloris" (2009); R.U.D.Y. (2010); Cambiaso et al.,
"Slow DoS attacks: definition and categorisation" (2013).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding, confidence_of
from fwtop.analysis.parsers import http
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, Rows, payload
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import F64, I64, Mask
from fwtop.render.numbers import percent

_SETTLED_NS = 500_000_000  # a younger connection may still send data
_SILENT_PACKETS = 5.0  # SYN, ACK, and FIN or RST
_MANY = 100  # connections at least
_PER_SECOND = 20.0  # opened and idle: health checks of load balancers are fewer
_EACH = 3.0  # connections per source: clients that gave up have one
_SLOW_FLOWS = 50
_SLOW_SECONDS = 1.0  # between two pieces of a request
_CRUMB = 64  # bytes per piece; the next request of a browser is larger
_WATCHED_SECONDS = 8.0


@dataclass(frozen=True)
class _Flows:
    """Statistics of each TCP flow towards this host; arrays with one entry per flow."""

    place: Rows  # of each row
    packets: F64
    data: F64  # packets with payload
    opened: Mask  # its SYN was seen
    completed: Mask
    first: I64
    last: I64


def silent(context: AnalysisContext) -> list[Finding]:
    """Find floods of connections that complete the handshake and send no data."""
    traffic, tcp = context.traffic, context.tcp
    rows = traffic.rows(tcp.tcp & context.unclaimed & ~tcp.syn_ack & ~context.solicited)
    if context.sparse or len(rows) < 2 * _MANY:
        return []
    flows = _flows(context, rows)
    now = int(traffic.packets.time_ns.max())
    settled = flows.opened & flows.completed & (flows.first < now - _SETTLED_NS)
    empty = settled & (flows.data == 0) & (flows.packets <= _SILENT_PACKETS)
    if empty.sum() < max(_MANY, 0.5 * settled.sum()):
        return []
    ports = traffic.packets.dport[rows]
    port = int(np.bincount(ports[empty[flows.place]]).argmax())
    mine = np.zeros(len(empty), np.bool_)
    mine[flows.place[ports == port]] = True
    empty &= mine
    features = context.features(rows[empty[flows.place]])
    opened, rate = int(empty.sum()), float(empty.sum()) / traffic.seconds
    if opened < max(_MANY, 0.7 * (settled & mine).sum(), _EACH * features.sources) or rate < _PER_SECOND:
        return []
    if not context.significant(features, floor_pps=context.config.reflection_pps, normal="tcp.syn"):
        return []
    evidence = (
        f"{opened:,} connections of {features.senders} to port {port} ({rate:,.0f}/s) finished the handshake "
        "and sent no data",
        f"{percent(opened / max(1, (settled & mine).sum()))} of the connections to that port do so",
    )
    spoof = context.spoof(features.rows, completed=1.0)
    match = Match(protocol=TCP, dport=port, tcp_flags=(SYN | ACK, SYN))
    return [
        Finding(
            "syn_flood",
            "TCP connection flood",
            features.rows,
            confidence_of(0.85, features.n),
            evidence,
            spoof,
            match,
        )
    ]


def slow_requests(context: AnalysisContext) -> list[Finding]:
    """Find HTTP requests in small pieces that never end, to occupy the workers of a server."""
    traffic, tcp = context.traffic, context.tcp
    packets = traffic.packets
    if context.sparse or traffic.seconds < _WATCHED_SECONDS:
        return []
    rows = traffic.rows(tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(rows) < 3 * _SLOW_FLOWS:
        return []
    asks = http.request_mask(traffic, rows)
    asking = traffic.of_flows(rows[asks])[rows]
    rows, asks = rows[asking], asks[asking]
    if asks.sum() < _SLOW_FLOWS:
        return []
    first, _ = payload(packets, rows, 1)
    load = packets.payload_length[rows].astype(np.float64)
    flows = _flows(context, rows)
    crumb = ~asks & (load <= _CRUMB) & (first[:, 0] < 0x80)  # WebSocket frames begin above
    size = len(flows.packets)
    crumbs, requests = np.bincount(flows.place, crumb, size), np.bincount(flows.place, asks, size)
    pace = (flows.last - flows.first) / 1e9 / np.maximum(flows.packets - 1, 1)
    slow = (requests == 1) & (crumbs >= 2) & (crumbs + 1 == flows.packets) & (pace >= _SLOW_SECONDS)
    if slow.sum() < max(_SLOW_FLOWS, 0.2 * size):
        return []
    features = context.features(tcp.tcp & context.unclaimed & traffic.of_flows(rows[slow[flows.place]]))
    evidence = (
        f"{slow.sum():,} connections of {features.senders} started requests and finished none: "
        f"they send {load[crumb].mean():.0f} bytes every {np.median(pace[slow]):.0f} s",
        f"{percent(slow.sum() / size)} of the connections with requests are held open this way "
        f"(Slowloris, R.U.D.Y.): "
        f"only {features.amount('packets')}, but each connection occupies a worker",
    )
    dport = features.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    spoof = context.spoof(features.rows, completed=1.0)
    title = "Slow HTTP attack"
    return [
        Finding("http_flood", title, features.rows, confidence_of(0.9, features.n), evidence, spoof, match)
    ]


def _flows(context: AnalysisContext, rows: Rows) -> _Flows:
    traffic, tcp = context.traffic, context.tcp
    _, place = np.unique(traffic.flow_id[rows], return_inverse=True)
    size, time = int(place.max()) + 1, traffic.packets.time_ns[rows]
    first, last = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(first, place, time)
    np.maximum.at(last, place, time)
    return _Flows(
        place,
        np.bincount(place, minlength=size).astype(np.float64),
        np.bincount(place, traffic.packets.payload_length[rows] > 0, size).astype(np.float64),
        np.bincount(place, tcp.syn[rows], size) > 0,
        np.bincount(place, tcp.completed[rows], size) > 0,
        first,
        last,
    )
