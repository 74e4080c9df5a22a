"""Groups of HTTP/2 requests over plain TCP (RFC 9113), where the frames can be read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, count
from fwtop.analysis.engine.group import Group, Least, Proof, cut, feature
from fwtop.analysis.groups.requests import fast_rows
from fwtop.analysis.parsers import http

_CROWDED = 10.0  # requests per segment: a browser's first burst for a page, not one after the other
_BURSTS = 2.0  # such segments per second and source


@cut(Proof.REQUESTS)
def http2_requests(context: AnalysisContext) -> Iterator[Group]:
    """Segments with HTTP/2 HEADERS frames of fast sources, or with dozens of them (CVE-2023-44487)."""
    packets, config = context.traffic.packets, context.config
    data = context.traffic.rows(context.tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(data) < config.min_samples:
        return
    size = http.headers_frame(context.traffic, data)
    features = context.features(data[size > 0])
    # Segments with dozens of requests are few: what is usual of segments says nothing about them
    if not context.significant(features, floor_pps=config.reflection_pps, normal="", shaped=True):
        return
    each = packets.payload_length[features.rows] / size[size > 0]
    fast = fast_rows(features, config.request_rate_per_source)
    fast |= (each >= _CROWDED) & fast_rows(features, _BURSTS)
    if not fast.any():
        return
    some = context.features(features.rows[fast])
    per_second = float((some.weight * np.maximum(each[fast], 1)).sum()) / context.traffic.seconds
    notes = {
        "fast_frames": float(fast.mean()),
        "requests": f"about {count(per_second)} requests/s, {count(per_second / some.sources)} per source",
    }
    yield Group(context, some, Least("reflection_pps", "", shaped=True), notes, spoof_prior=-4.0)


@feature("share")
def fast_frames(group: Group) -> float:
    """Part of the segments with HEADERS frames whose sources send them faster than browsers do."""
    return float(group.notes["fast_frames"])
