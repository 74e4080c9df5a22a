"""Requests over TCP, plain and inside TLS: how fast they come, on which connections, and who asks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import Group, feature
from fwtop.analysis.parsers import http
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows
from fwtop.model.traffic.packets import Mask, PacketBatch

LIMIT = "a limit of requests or connections for each source; a signature of the requests"
PARSED = 384  # requests, evenly spaced
_EVEN = 0.3  # squared coefficient of variation of the sources' rates: that of real clients is above 1


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


@feature("share")
def records_alike(group: Group) -> float:
    """Part of the records with one of the two most common sizes: the same request again and again."""
    return float(group.notes["one_size"])
