"""Floods of HTTP requests, as against a crowd. Sources: Jung et al., "Flash Crowds and DoS" (WWW 2002)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.advise import http
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.traffic import TCP, Rows
from fwtop.model.rule import Match


def requests(scene: Scene) -> list[Finding]:
    """Requests faster than people's browsers, outside of any connection, or with made-up queries.

    A crowd of real clients has few requests a source, whole connections and shared addresses (URLs);
    that alone is never called an attack, however many come.
    """
    packets = scene.traffic.packets
    data = scene.traffic.rows(scene.tcp.ack & scene.free & (packets.payload_length > 0))
    if len(data) < scene.config.min_samples:
        return []
    rows = data[http.request_mask(scene.traffic, data)]
    facts = scene.facts(rows)
    if not scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    parsed = http.requests(scene.traffic, facts.sample[:1024])
    reasons = _reasons(scene, facts, parsed)
    if not reasons:
        return []
    evidence = (
        f"{count(facts.packets)} HTTP requests ({count(facts.pps)}/s) of {facts.sources:,} sources",
        *reasons,
        *http.describe(parsed),
    )
    stray = outside_connections(scene, facts)
    spoof = scene.spoof(rows, prior=0.0 if stray else -4.0)
    dport = facts.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    if not stray:
        rows = with_connections(scene, facts)
    return [Finding("http_flood", "HTTP flood", rows, sure(0.9, facts.n), evidence, spoof, match)]


def _reasons(scene: Scene, facts: Facts, parsed: list[http.Request]) -> list[str]:
    reasons = []
    limit = scene.config.request_rate_per_source
    busy = fast_sources(facts, limit)
    if busy > 0.5:
        reasons.append(f"{busy:.0%} come from sources that send more than {limit:.0f} a second each")
    if outside_connections(scene, facts):
        reasons.append("they belong to no connection: nobody did a handshake before")
    asked = [request for request in parsed if request.query]
    if len(asked) > 0.8 * len(parsed) and len(asked) >= 30:
        paths = Counter(request.path for request in asked).most_common(1)[0][1] / len(asked)
        distinct = len({request.query for request in asked}) / len(asked)
        tools = Counter(request.template for request in asked).most_common(1)[0][1] / len(asked)
        if paths > 0.8 and distinct > 0.8 and tools > 0.5:
            reasons.append(f"{distinct:.0%} have a query of their own for one path, to get around caches")
    return reasons


def outside_connections(scene: Scene, facts: Facts) -> bool:
    """Tell packets that claim to be of connections, but one of each only, and hardly any was opened."""
    real = float(scene.tcp.real[facts.rows].mean())
    openings = float(scene.traffic.weight[scene.tcp.syn].sum())
    return real < 0.1 and facts.flow_singles > 0.8 and openings < 0.1 * facts.packets


def with_connections(scene: Scene, facts: Facts) -> Rows:
    """Count the handshakes and acknowledgements of the same clients on the same ports to the flood."""
    traffic = scene.traffic
    clients = np.isin(traffic.source_key, np.unique(traffic.source_key[facts.rows]))
    ports = np.isin(traffic.packets.dport, np.unique(traffic.packets.dport[facts.rows]))
    return traffic.rows(scene.tcp.tcp & scene.free & clients & ports)


def fast_sources(facts: Facts, limit: float) -> float:
    """Return the part of the rows whose source sends more than `limit` a second (by its samples)."""
    traffic = facts.traffic
    _, inverse, counts = np.unique(traffic.source_key[facts.rows], return_inverse=True, return_counts=True)
    sums = np.bincount(inverse, facts.weight)
    # Two samples of a thinly sampled source say little about its rate
    fast = (sums / max(traffic.seconds, 1.0) > limit) & (counts >= 5)
    return float(facts.weight[fast[inverse]].sum()) / facts.packets if facts.packets else 0.0
