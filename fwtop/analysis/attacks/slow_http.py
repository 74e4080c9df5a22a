"""Slow requests as packets show them.

Sources: Hansen, "Slowloris" (2009); R.U.D.Y. (2010); Cambiaso et al., "Slow DoS attacks: definition and
categorisation" (2013).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, at_least, cut, noted
from fwtop.analysis.measures.general import to_port
from fwtop.analysis.measures.tcp import flows_of
from fwtop.analysis.parsers import http
from fwtop.analysis.window.traffic import payload

_SLOW_FLOWS = 50
_SLOW_SECONDS = 1.0  # between two pieces of a request
_CRUMB = 64  # bytes per piece; the next request of a browser is larger
_WATCHED_SECONDS = 8.0


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
    flows = flows_of(context, rows)
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


slow = noted(
    "slow", "connections",
    "Connections whose request comes in pieces of at most 64 bytes, a second or more apart.",
)  # fmt: skip


slow_share = noted(
    "slow_share", "share",
    "Part of the connections with requests whose requests come in such small, late pieces.",
)  # fmt: skip


ENTRIES = (
    Hypothesis(
        "slow HTTP attack", slow_requests, 2.2,  # Slowloris (2009), R.U.D.Y. (2010)
        kind="http_flood",
        traits=Trait.REQUESTS,
        title="Slow HTTP attack",
        needs=(at_least(slow, 50), at_least(slow_share, 0.2)),
        lead=(
            "{slow:count} connections of {senders} started requests and finished none: they send "
            "{piece:.0f} bytes every {every_seconds:.0f} s",
            "{slow_share:percent} of the connections with requests are held open this way (Slowloris, "
            "R.U.D.Y.): only {amount:packets}, but each connection occupies a worker",
        ),
        match=to_port,
        stopped_by="a limit of connections for each source; time limits of the server",
    ),
)  # fmt: skip
