"""Floods of HTTP/2 requests over plain TCP (RFC 9113), where the frames can be read."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.classify.http import fast_rows, with_connections
from fwtop.analysis.context import AnalysisContext, Finding, confidence_of, count
from fwtop.analysis.parsers import http
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import TCP
from fwtop.model.rule import Match

_CROWDED = 10.0  # requests per segment: a browser's first burst for a page, not one after the other
_BURSTS = 2.0  # such segments per second and source
_MOST = 0.5


def requests(context: AnalysisContext) -> list[Finding]:
    """Find HEADERS frames faster than browsers send them, one per segment or dozens (CVE-2023-44487)."""
    packets, config = context.traffic.packets, context.config
    data = context.traffic.rows(context.tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(data) < config.min_samples:
        return []
    size = http.headers_frame(context.traffic, data)
    features = context.features(data[size > 0])
    # Segments with dozens of requests are few: what is usual of segments says nothing about them
    if not context.significant(features, floor_pps=config.reflection_pps, normal="", shaped=True):
        return []
    each = packets.payload_length[features.rows] / size[size > 0]
    fast = fast_rows(features, config.request_rate_per_source)
    fast |= (each >= _CROWDED) & fast_rows(features, _BURSTS)
    if fast.mean() < _MOST:
        return []
    features, each = context.features(features.rows[fast]), each[fast]
    per_second = float((features.weight * np.maximum(each, 1)).sum()) / context.traffic.seconds
    return [_finding(context, features, per_second)]


def _finding(context: AnalysisContext, features: Features, per_second: float) -> Finding:
    evidence = (
        f"{features.amount('segments with HTTP/2 requests')} from {features.senders}: "
        f"about {count(per_second)} requests/s, {count(per_second / features.sources)} per source",
    )
    dport = features.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    spoof = context.spoof(features.rows, prior=-4.0)
    rows = with_connections(context, features)
    confidence = confidence_of(0.85, features.n)
    return Finding("http_flood", "HTTP/2 request flood", rows, confidence, evidence, spoof, match)
