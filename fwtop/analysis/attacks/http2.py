"""Floods of HTTP/2 requests, where the frames can be read and inside TLS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait, count
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature, noted
from fwtop.analysis.measures.general import ENOUGH, FEW, sources, to_port
from fwtop.analysis.measures.tcp import (
    BY_FEW,
    LIMIT,
    after_answers,
    busy_at_once,
    fast_rows,
    records_alike,
    usual_payloads,
    with_their_connections,
)
from fwtop.analysis.parsers import http, tls
from fwtop.analysis.severity import ACCEPT, service
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.traffic import Rows
from fwtop.model.traffic.packets import Mask, PacketBatch

_CROWDED = 10.0  # requests per segment: a browser's first burst for a page, not one after the other
_BURSTS = 2.0  # such segments per second and source
_TINY_RECORD = 96  # bytes: a HEADERS frame of an indexed request, or a reset
_SMALL = 256  # bytes: a request, a reset, a window update
_SIZES = 2  # most common ones: requests, and window updates or resets
_FEWEST = 30  # records


@cut(Proof.REQUESTS)
def http2_requests(context: AnalysisContext) -> Iterator[Group]:
    """Segments with HTTP/2 HEADERS frames of fast sources, or with dozens of them (CVE-2023-44487)."""
    packets, config = context.traffic.packets, context.config
    data = context.data_rows
    if not len(data):
        return
    size = http.headers_frame(context.traffic, data)
    features = context.features(data[size > 0])
    # Segments with dozens of requests are few: what is usual of segments says nothing about them
    if context.prominence(features, floor_pps=config.reflection_pps, normal="", shaped=True) < 1:
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
        "in_a_segment": float(each[fast].mean()),
        "requests": f"about {count(per_second)} requests/s, {count(per_second / some.sources)} per source",
    }
    yield Group(context, some, Least("reflection_pps", "", shaped=True), notes, spoof_prior=-4.0)


fast_frames = noted("fast_frames", "share",
    "Part of the segments with HEADERS frames whose sources send them faster than browsers do.")  # fmt: skip


in_a_segment = noted("in_a_segment", "requests",
    "Requests in a segment, in the mean: who waits for answers sends few at once.")  # fmt: skip


@cut(Proof.REQUESTS)
def tiny_records(context: AnalysisContext) -> Iterator[Group]:
    """Segments of fast sources that are full of tiny TLS records: dozens of HTTP/2 requests each.

    Source: CVE-2023-44487 (rapid reset), as Cloudflare and Google described it in 2023: HEADERS and
    RST_STREAM frames of about 40 bytes each, without flow control.
    """
    packets, config = context.traffic.packets, context.config
    data = context.data_rows
    data = data[packets.payload_length[data] > 3 * _TINY_RECORD]
    if context.sparse or len(data) < config.min_samples:
        return
    data = data[tls.record_mask(context.traffic, data)]
    record, is_data = tls.application_data(packets, data)
    tiny = is_data & (record <= _TINY_RECORD)
    features = context.features(data[tiny])
    if features.n < config.min_samples:
        return
    fast = fast_rows(features, config.request_rate_per_source)
    some = context.features(features.rows[fast])
    if not some.n:
        return
    size = float(record[tiny].mean())
    notes = {
        "fast_records": float(fast.mean()),
        "record_size": size,
        "each": float(packets.payload_length[some.rows].mean()) / (size + 5),
    }
    yield Group(context, some, Least("reflection_pps", "", shaped=True), notes, spoof_prior=-4.0)


fast_records = noted("fast_records", "share",
    "Part of the segments with tiny records whose sources send them faster than clients do.")  # fmt: skip


def small_records(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows whose payload starts with a small record of TLS application data."""
    size, is_data = tls.application_data(packets, rows)
    return np.asarray(is_data & (size > 0) & (size <= _SMALL))


@cut(Proof.VOLUME)
def requests_inside_tls(context: AnalysisContext) -> Iterator[Group]:
    """Small TLS records to an HTTPS port of sources that send more of them than browsers do."""
    packets, config = context.traffic.packets, context.config
    pool = context.tcp.ack & context.unclaimed & ~context.benign & (packets.payload_length > 0)
    rows = context.traffic.rows(pool & among(packets.dport, tls.HTTPS))
    if len(rows) < config.min_samples:
        return
    rows = rows[small_records(packets, rows)]
    if len(rows) < _FEWEST:
        return
    features = context.features(rows)
    some = context.features(rows[fast_rows(features, config.request_rate_per_source)])
    if not some.n:
        return
    flows = len(distinct_values(context.traffic.flow_id[some.rows]))
    counts = np.sort(np.bincount(packets.payload_length[some.rows].astype(np.intp)))[::-1]
    notes = {"flows": flows, "one_size": float(counts[:_SIZES].sum() / max(1, some.n))}
    yield Group(context, some, Least("flood_pps", small_records, shaped=True), notes, spoof_prior=-4.0)


@feature("records a second")
def records_each(group: Group) -> float:
    """Records a second of each connection: a browser sends dozens when it opens a page, then waits."""
    return group.packets.pps / max(1.0, float(group.notes["flows"]))


@feature("decades")
def records_above_normal(group: Group) -> float:
    """Rate of such records against the baseline's, as a decimal logarithm; 0 where nothing is known."""
    usual = usual_payloads(group.context, small_records)
    if usual is None:
        return 0.0
    return float(np.log10(max(1.0, group.packets.pps / max(usual, group.context.config.flood_pps))))


@feature("yes or no")
def records_as_usual(group: Group) -> float:
    """Whether the baseline holds about as many such records."""
    usual = usual_payloads(group.context, small_records)
    return usual is not None and bool(group.packets.pps <= group.context.config.baseline_factor * usual)


_flood = partial(
    Hypothesis,
    kind="http_flood",
    exhausts=(service(2_000), ACCEPT),  # frames of streams that cost the server work
    traits=Trait.REQUESTS,
    match=to_port,
    rows=with_their_connections,
    stopped_by=LIMIT,
)
ENTRIES = (
    _flood(
        "HTTP/2 request flood", of=http2_requests, prior=1.8,
        needs=(ENOUGH, fast_frames.at_least(0.5)),
        lead="{amount:segments with HTTP/2 requests} from {senders}: {requests}",
    ),
    _flood(
        "HTTP/2 request flood inside TLS", of=tiny_records, prior=1.1,
        title="HTTP/2 request flood",
        needs=(ENOUGH, fast_records.at_least(0.5)),
        lead=(
            "{amount:segments} ({rate:count}/s) from {senders} hold about {each:.0f} TLS records of "
            "{record_size:.0f} bytes each: dozens of requests per segment",
            "HTTP/2 clients that wait for answers don't do this (CVE-2023-44487: rapid reset)",
        ),
    ),
    _flood(
        "requests inside TLS without end", of=requests_inside_tls, prior=-0.5,
        title="Flood of requests inside TLS",
        needs=(ENOUGH, records_each.at_least(10)),
        lead=(
            "{amount:small TLS records} from {senders} on {flows:count} connections",
            "what they ask can't be read: requests, resets (CVE-2023-44487), or both",
        ),
        evidence=(
            records_each.says(80, -4.0, 300, 2.0, "{records_each:count} records/s on each connection"),
            records_alike.says(0.5, -2.5, 0.9, 2.5, "{records_alike:percent} have one of two sizes: the "
                                                     "same request again and again"),
            records_above_normal.says(0.5, 0.0, 1.5, 2.0, "many times as many as usual"),
            busy_at_once.says(40, 0.0, 200, 5.0, "{busy_at_once:count} connections of each source at once"),
            records_as_usual.if_so(-6.0),
        ),
        stopped_by="a limit of requests for each connection in the server; blocking the sources",
    ),
    Hypothesis(
        "services that call each other", requests_inside_tls, 0.0,  # gRPC, gateways, mirrors
        evidence=(
            records_alike.says(0.2, 3.0, 0.7, -2.0),
            records_each.says(200, 1.0, 3_000, -2.0),
            records_as_usual.if_so(3.0),
        ),
    ),
    *(
        Hypothesis(
            f"one program that waits for answers{where}", part, 1.0,
            needs=(sources.at_most(FEW),),
            evidence=(*BY_FEW, after_answers.says(0.6, -8.0, 0.95, 3.0), *unlike),
        )
        for where, part, unlike in (
            ("", http2_requests, (in_a_segment.says(3, 0.0, 10, -8.0),)),
            (" inside TLS", requests_inside_tls, (records_above_normal.says(0.5, 0.0, 1.5, -2.0),)),
        )
    ),
)  # fmt: skip
