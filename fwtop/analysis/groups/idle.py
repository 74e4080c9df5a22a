"""Groups of connections that are opened to exhaust the server: silent ones, and slow requests.

Sources: RFC 4987 1 (connection floods); Hansen, "Slowloris" (2009); R.U.D.Y. (2010); Cambiaso et al.,
"Slow DoS attacks: definition and categorisation" (2013).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.group import Group, Least, Proof, cut, feature
from fwtop.analysis.parsers import http
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, Rows, payload
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import F64, I64, Mask

_SETTLED_NS = 500_000_000  # a younger connection may still send data
_SILENT_PACKETS = 5.0  # SYN, ACK, and FIN or RST
_MANY = 100  # connections at least
_SLOW_FLOWS = 50
_SLOW_SECONDS = 1.0  # between two pieces of a request
_CRUMB = 64  # bytes per piece; the next request of a browser is larger
_WATCHED_SECONDS = 8.0
_FEW = 10  # sampled openings
_FORGED = 0.9  # probability
_TELL = 4  # samples of a source, and sources, that tell whether they send data


class _Flows(Struct, frozen=True):
    """Statistics of each TCP flow towards this host; arrays with one entry per flow."""

    place: Rows  # of each row
    packets: F64
    data: F64  # packets with payload
    opened: Mask  # its SYN was seen
    completed: Mask
    first: I64
    last: I64


@cut(Proof.VOLUME)
def silent_connections(context: AnalysisContext) -> Iterator[Group]:
    """Connections to one port that completed the handshake half a second ago and have sent no data."""
    traffic, tcp = context.traffic, context.tcp
    rows = traffic.rows(tcp.tcp & context.unclaimed & ~tcp.syn_ack & ~context.solicited)
    if context.sparse or len(rows) < 2 * _MANY:
        return
    flows = _flows(context, rows)
    now = int(traffic.packets.time_ns.max())
    settled = flows.opened & flows.completed & (flows.first < now - _SETTLED_NS)
    empty = settled & (flows.data == 0) & (flows.packets <= _SILENT_PACKETS)
    if empty.sum() < max(_MANY, 0.5 * settled.sum()):
        return
    ports = traffic.packets.dport[rows]
    port = int(np.bincount(ports[empty[flows.place]]).argmax())
    mine = np.zeros(len(empty), np.bool_)
    mine[flows.place[ports == port]] = True
    empty &= mine
    features = context.features(rows[empty[flows.place]])
    opened = int(empty.sum())
    notes = {
        "silent_port": port,
        "silent": opened,
        "silent_share": opened / max(1, int((settled & mine).sum())),
    }
    yield Group(context, features, Least("reflection_pps", "tcp.syn"), notes, completed=1.0)


@feature("connections")
def silent(group: Group) -> float:
    """Connections that completed the handshake half a second ago and have sent no data."""
    return float(group.notes["silent"])


@feature("connections a second")
def silent_rate(group: Group) -> float:
    """Silent connections a second; health checks of load balancers are fewer."""
    return float(group.notes["silent"]) / group.context.traffic.seconds


@feature("connections")
def silent_each(group: Group) -> float:
    """Silent connections of each source; a client that gave up has one."""
    return float(group.notes["silent"]) / max(1, group.packets.sources)


@cut(Proof.VOLUME)
def sources_without_data(context: AnalysisContext) -> Iterator[Group]:
    """TCP packets of sources without data to the port that most connections are opened to, however thin."""
    traffic, tcp = context.traffic, context.tcp
    mine = tcp.tcp & ~tcp.syn_ack & ~context.solicited
    openings = mine & tcp.syn & context.unclaimed
    if openings.sum() < _FEW:
        return
    port = int(np.bincount(traffic.packets.dport[openings], traffic.weight[openings]).argmax())
    # Of a flood of requests a thin sample leaves the sources whose data it misses: those that spoke count
    asked = [finding.rows for finding in context.findings if finding.requests]
    spoken = np.isin(np.arange(len(traffic)), np.concatenate(asked)) if asked else False
    rows = traffic.rows(mine & (context.unclaimed | spoken) & (traffic.packets.dport == port))
    source, weight = traffic.source_id[rows], traffic.weight[rows]
    size = int(source.max()) + 1
    seen = np.bincount(source, minlength=size)
    syn = np.bincount(source, weight * tcp.syn[rows], size)
    data = np.bincount(source, weight * (traffic.packets.payload_length[rows] > 0), size)
    bare = np.bincount(source, weight * (tcp.ack[rows] & ~tcp.fin[rows]), size) - data
    mute = data == 0
    known = (seen >= _TELL) & (syn > 0)  # of others, a sample tells little
    told = int(known.sum()) >= _TELL
    part = (
        float(syn[known & mute].sum()) / float(syn[known].sum())
        if told
        else 1 - min(1.0, float(data.sum()) / max(1.0, float(syn.sum())))
    )
    rows = rows[context.unclaimed[rows]]
    mute &= np.bincount(traffic.source_id[rows], minlength=size) > 0
    begun = float(syn[mute].sum())
    notes = {
        "silent_port": port,
        "opened": begun,
        "acknowledged": float(bare[mute].sum()) / max(1.0, begun),
        "no_data_share": part,
    }
    features = context.features(rows[mute[traffic.source_id[rows]]])
    forged = None
    if begun >= _MANY:  # by the SYNs alone: invented sessions use each address several times
        forged = context.spoof(features.rows[tcp.syn[features.rows]])
        forged = forged if forged.probability >= _FORGED else None
    least = Least("reflection_pps", "tcp.syn")
    yield Group(context, features, least, notes, completed=1.0, known_spoof=forged)


@feature("connections")
def opened(group: Group) -> float:
    """Connections that sources without data opened to the port."""
    return float(group.notes["opened"])


@feature("connections a second")
def opened_rate(group: Group) -> float:
    """Connections a second that sources without data opened."""
    return float(group.notes["opened"]) / max(1.0, group.context.traffic.seconds)


@feature("connections")
def opened_each(group: Group) -> float:
    """Connections that each source without data opened, with those that the sample misses."""
    return float(group.notes["opened"]) / max(1.0, group.packets.likely_sources)


@feature("times")
def acknowledged(group: Group) -> float:
    """ACKs without data for each opening: the handshakes are finished."""
    return float(group.notes["acknowledged"])


@feature("share")
def no_data_share(group: Group) -> float:
    """Part of the openings to the port whose sources never send data.

    Of sources with four samples or more; where there are few of these, openings that no data segment answers.
    """
    return float(group.notes["no_data_share"])


@feature("share")
def silent_share(group: Group) -> float:
    """Part of the port's connections that are silent."""
    return float(group.notes["silent_share"])


def match_opened(group: Group) -> Match:
    """Match SYNs to the port."""
    return Match(protocol=TCP, dport=int(group.notes["silent_port"]), tcp_flags=(SYN | ACK, SYN))


@cut(Proof.REQUESTS)
def slow_requests(context: AnalysisContext) -> Iterator[Group]:
    """HTTP requests in small pieces that never end, and all that belongs to their connections."""
    traffic, tcp = context.traffic, context.tcp
    packets = traffic.packets
    if context.sparse or traffic.seconds < _WATCHED_SECONDS:
        return
    rows = traffic.rows(tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(rows) < 3 * _SLOW_FLOWS:
        return
    asks = http.starts_request(traffic.packets, rows)
    asking = traffic.of_flows(rows[asks])[rows]
    rows, asks = rows[asking], asks[asking]
    if asks.sum() < _SLOW_FLOWS:
        return
    first, _ = payload(packets, rows, 1)
    load = packets.payload_length[rows].astype(np.float64)
    flows = _flows(context, rows)
    crumb = ~asks & (load <= _CRUMB) & (first[:, 0] < 0x80)  # WebSocket frames begin above
    size = len(flows.packets)
    crumbs, requests = np.bincount(flows.place, crumb, size), np.bincount(flows.place, asks, size)
    pace = (flows.last - flows.first) / 1e9 / np.maximum(flows.packets - 1, 1)
    slow = (requests == 1) & (crumbs >= 2) & (crumbs + 1 == flows.packets) & (pace >= _SLOW_SECONDS)
    if not slow.any():
        return
    features = context.features(tcp.tcp & context.unclaimed & traffic.of_flows(rows[slow[flows.place]]))
    notes = {
        "slow": int(slow.sum()),
        "slow_share": float(slow.sum()) / size,
        "piece": float(load[crumb].mean()),
        "every_seconds": float(np.median(pace[slow])),
    }
    yield Group(context, features, Least(), notes, completed=1.0)


@feature("connections")
def slow(group: Group) -> float:
    """Connections whose request comes in pieces of at most 64 bytes, a second or more apart."""
    return float(group.notes["slow"])


@feature("share")
def slow_share(group: Group) -> float:
    """Part of the connections with requests whose requests come in such small, late pieces."""
    return float(group.notes["slow_share"])


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
