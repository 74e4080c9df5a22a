"""Features of TCP packets outside of connections, and of flows."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec import Struct

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import Group, feature
from fwtop.analysis.measures.general import of_protocol
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN
from fwtop.analysis.window.traffic import Rows
from fwtop.model.traffic.packets import F64, I64, Mask
from fwtop.render.numbers import percent

OUTSIDE = "dropping TCP packets outside of connections (conntrack state INVALID)"
BARE = 5  # words of a TCP header without options
_FIELDS = {
    "tcp_window": "window",
    "tcp_seq": "sequence number",
    "ip_id": "IP id",
    "sport": "source port",
    "ttl": "TTL",
}


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
