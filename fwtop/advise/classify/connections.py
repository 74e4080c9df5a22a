"""Connections opened for their own sake: none says anything, or each says it as slowly as it can.

Sources: RFC 4987 1 (connection floods); Hansen, "Slowloris" (2009); R.U.D.Y. (2010); Cambiaso et al.,
"Slow DoS attacks: definition and categorisation" (2013).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fwtop.advise import http
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.tcpview import ACK, SYN
from fwtop.advise.traffic import TCP, Rows, payload
from fwtop.model.packets import F64, I64, Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match

_SETTLED_NS = 500_000_000  # a younger connection may still begin to talk
_SILENT_PACKETS = 5.0  # SYN, ACK, and what ends it
_MANY = 100  # connections at least
_PER_SECOND = 20.0  # opened and left: probes of load balancers are fewer
_EACH = 3.0  # connections a source: clients that gave up have one
_SLOW_FLOWS = 50
_SLOW_SECONDS = 1.0  # between two crumbs of a request
_CRUMB = 64  # bytes; a browser's next request is larger
_WATCHED_SECONDS = 8.0


@dataclass(frozen=True)
class _Flows:
    """Numbers of each TCP flow towards this host; arrays of one entry a flow."""

    place: Rows  # of each row
    packets: F64
    data: F64  # packets with payload
    opened: Mask  # its SYN was seen
    completed: Mask
    first: I64
    last: I64


def silent(scene: Scene) -> list[Finding]:
    """Handshakes that are completed and then left: floods of whole connections without data."""
    traffic, tcp = scene.traffic, scene.tcp
    rows = traffic.rows(tcp.tcp & scene.free & ~tcp.syn_ack & ~scene.solicited)
    if scene.thin or len(rows) < 2 * _MANY:
        return []
    flows = _flows(scene, rows)
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
    facts = scene.facts(rows[empty[flows.place]])
    opened, rate = int(empty.sum()), float(empty.sum()) / traffic.seconds
    if opened < max(_MANY, 0.7 * (settled & mine).sum(), _EACH * facts.sources) or rate < _PER_SECOND:
        return []
    if not scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="tcp.syn"):
        return []
    evidence = (
        f"{opened:,} connections of {facts.senders} to port {port} ({rate:,.0f} a second) "
        "were completed and then said nothing",
        f"{percent(opened / max(1, (settled & mine).sum()))} of the connections to that port are like that",
    )
    spoof = scene.spoof(facts.rows, completed=1.0)
    match = Match(protocol=TCP, dport=port, tcp_flags=(SYN | ACK, SYN))
    return [
        Finding("syn_flood", "TCP connection flood", facts.rows, sure(0.85, facts.n), evidence, spoof, match)
    ]


def slow_requests(scene: Scene) -> list[Finding]:
    """HTTP requests that come in crumbs and never end, to hold the server's workers."""
    traffic, tcp = scene.traffic, scene.tcp
    packets = traffic.packets
    if scene.thin or traffic.seconds < _WATCHED_SECONDS:
        return []
    rows = traffic.rows(tcp.ack & scene.free & (packets.payload_length > 0))
    if len(rows) < 3 * _SLOW_FLOWS:
        return []
    asks = http.request_mask(traffic, rows)
    talks = traffic.of_flows(rows[asks])[rows]
    rows, asks = rows[talks], asks[talks]
    if asks.sum() < _SLOW_FLOWS:
        return []
    first, _ = payload(packets, rows, 1)
    load = packets.payload_length[rows].astype(np.float64)
    flows = _flows(scene, rows)
    crumb = ~asks & (load <= _CRUMB) & (first[:, 0] < 0x80)  # WebSocket frames begin above
    size = len(flows.packets)
    crumbs, requests = np.bincount(flows.place, crumb, size), np.bincount(flows.place, asks, size)
    pace = (flows.last - flows.first) / 1e9 / np.maximum(flows.packets - 1, 1)
    slow = (requests == 1) & (crumbs >= 2) & (crumbs + 1 == flows.packets) & (pace >= _SLOW_SECONDS)
    if slow.sum() < max(_SLOW_FLOWS, 0.2 * size):
        return []
    facts = scene.facts(tcp.tcp & scene.free & traffic.of_flows(rows[slow[flows.place]]))
    evidence = (
        f"{slow.sum():,} connections of {facts.senders} began requests and ended none: "
        f"they send {load[crumb].mean():.0f} bytes every {np.median(pace[slow]):.0f} s",
        f"{percent(slow.sum() / size)} of the connections with requests are held so (Slowloris, R.U.D.Y.); "
        f"their {count(facts.packets)} packets are few, but each occupies a worker",
    )
    dport = facts.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    spoof = scene.spoof(facts.rows, completed=1.0)
    title = "Slow HTTP attack"
    return [Finding("http_flood", title, facts.rows, sure(0.9, facts.n), evidence, spoof, match)]


def _flows(scene: Scene, rows: Rows) -> _Flows:
    traffic, tcp = scene.traffic, scene.tcp
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
