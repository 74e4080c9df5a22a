"""TLS handshake floods: cheap for the client, expensive for the server (RFC 8446 appendix, THC-SSL-DOS)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.analysis.classify.http import fast_rows, outside_connections, with_connections
from fwtop.analysis.context import AnalysisContext, Finding, confidence_of, count
from fwtop.analysis.parsers import tls
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import TCP, payload
from fwtop.model.rule import Match
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent

_PATIENCE_NS = 500_000_000  # after which a client has its answer and continues
_ENOUGH = 100
_PROBERS = 10  # monitoring hosts that check a server about once a second
_SEVERAL = 3  # hellos of one source
_WHOLE = 1.5  # packets per sample, up to which connections are mostly complete
_ALL_DATA = 0.8  # of the segments with data
_HANDSHAKE, _APPLICATION_DATA = 22, 23
_TINY_RECORD = 96  # bytes: a HEADERS frame of an indexed request, or a reset
_BARE = 5  # SYN, ACK, hello, ACK of the server's answer, FIN or RST
_HANDSHAKES = 10  # handshake records on one connection: a client needs 3
_FLOWS = 3  # connections like that


def hellos(context: AnalysisContext) -> list[Finding]:
    """Find client hellos faster than browsers open connections, or outside of connections."""
    packets = context.traffic.packets
    data = context.traffic.rows(context.tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(data) < context.config.min_samples:
        return []
    rows = data[tls.hello_mask(context.traffic, data)]
    features = context.features(rows)
    if not context.significant(
        features, floor_pps=context.config.reflection_pps, normal="tcp.ack", shaped=True
    ):
        return []
    limit = context.config.request_rate_per_source
    reasons = []
    fast = fast_rows(features, limit)
    if fast.mean() > 0.3:
        features = context.features(features.rows[fast])
        reasons.append(f"their sources open more than {limit:.0f} sessions/s each")
    stray = outside_connections(context, features)
    if stray:
        reasons.append("they belong to no connection: there was no TCP handshake")
    parsed = tls.hellos(context.traffic, features.spread(384))
    if not reasons and (features.n >= _SEVERAL * features.sources or _one_print(parsed)):
        stalled = _stalled(context, features)
        probes = features.sources < _PROBERS and float(stalled.sum()) / context.traffic.seconds < limit
        if not probes and stalled.mean() > 0.5 and stalled.sum() >= _ENOUGH:
            reasons.append(f"{percent(stalled.mean())} of their connections send nothing after the hello")
            features = context.features(features.rows[stalled])
        elif features.n >= _ENOUGH and features.sources >= _PROBERS:
            reasons += _nothing_else(context, features)
    if not reasons:
        return []
    evidence = [f"{features.amount('TLS client hellos')} ({count(features.pps)}/s) from {features.senders}"]
    evidence += reasons + _describe(parsed)
    spoof = context.spoof(features.rows, prior=0.0 if stray else -4.0)
    rows = features.rows[~context.tcp.real[features.rows]] if stray else with_connections(context, features)
    dport = features.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    return [
        Finding(
            "tls_flood",
            "TLS handshake flood",
            rows,
            confidence_of(0.9, features.n),
            tuple(evidence),
            spoof,
            match,
        )
    ]


def renegotiations(context: AnalysisContext) -> list[Finding]:
    """Find connections with repeated handshakes (CVE-2011-1473, THC-SSL-DOS)."""
    traffic = context.traffic
    data = traffic.rows(context.tcp.ack & context.unclaimed & (traffic.packets.payload_length > 0))
    if context.sparse or len(data) < context.config.min_samples:
        return []
    head, length = payload(traffic.packets, data, 3)
    data = data[(head[:, 0] == _HANDSHAKE) & (head[:, 1] == 3) & (length == 3)]
    counts = np.bincount(traffic.flow_id[data], minlength=1)
    features = context.features(data[counts[traffic.flow_id[data]] >= _HANDSHAKES])
    flows = int((counts >= _HANDSHAKES).sum())
    floor = context.config.reflection_pps
    if flows < _FLOWS or not context.significant(features, floor_pps=floor, normal="tcp.ack", shaped=True):
        return []
    evidence = (
        f"{features.amount('handshake records')} ({count(features.pps)}/s) from {features.senders} "
        f"on {flows:,} "
        f"connections, {features.n / flows:.0f} each: a client needs 3",
    )
    dport = features.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    spoof = context.spoof(features.rows, prior=-4.0)
    rows, title = with_connections(context, features), "TLS renegotiation flood"
    return [Finding("tls_flood", title, rows, confidence_of(0.9, features.n), evidence, spoof, match)]


def small_records(context: AnalysisContext) -> list[Finding]:
    """Find segments full of tiny TLS records: dozens of HTTP/2 requests each.

    Source: CVE-2023-44487 (rapid reset), as Cloudflare and Google described it in 2023: HEADERS and
    RST_STREAM frames of about 40 bytes each, without flow control.
    """
    packets, config = context.traffic.packets, context.config
    data = context.traffic.rows(
        context.tcp.ack & context.unclaimed & (packets.payload_length > 3 * _TINY_RECORD)
    )
    if context.sparse or len(data) < config.min_samples:
        return []
    data = data[tls.record_mask(context.traffic, data)]
    head, length = payload(packets, data, 5)
    record = (head[:, 3].astype(np.int64) << 8) | head[:, 4]
    tiny = (head[:, 0] == _APPLICATION_DATA) & (record <= _TINY_RECORD) & (length == 5)
    features = context.features(data[tiny])
    if not context.significant(features, floor_pps=config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    fast = fast_rows(features, config.request_rate_per_source)
    if fast.mean() < 0.5:
        return []
    features = context.features(features.rows[fast])
    each = float(packets.payload_length[features.rows].mean()) / (float(record[tiny].mean()) + 5)
    evidence = (
        f"{features.amount('segments')} ({count(features.pps)}/s) from {features.senders} hold about "
        f"{each:.0f} TLS records of {record[tiny].mean():.0f} bytes each: dozens of requests per segment",
        "HTTP/2 clients that wait for answers don't do this (CVE-2023-44487: rapid reset)",
    )
    dport = features.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    spoof = context.spoof(features.rows, prior=-4.0)
    rows = with_connections(context, features)
    return [
        Finding(
            "http_flood",
            "HTTP/2 request flood",
            rows,
            confidence_of(0.75, features.n),
            evidence,
            spoof,
            match,
        )
    ]


def _stalled(context: AnalysisContext, features: Features) -> Mask:
    """Mark the hellos after which a connection sends nothing, of those old enough or closed.

    Browsers finish the handshake, send requests and acknowledge; they retry if the server is slow. A source
    that opens several connections and closes each during the handshake is no browser.
    Empty if sampling or a short capture hides that.
    """
    traffic = context.traffic
    time = traffic.packets.time_ns
    rows = traffic.rows(context.tcp.tcp)
    flow = traffic.flow_id
    closed = traffic.of_flows(context.tcp.fin | context.tcp.rst)
    old = (time[features.rows] < time.max() - _PATIENCE_NS) | closed[features.rows]
    if context.sparse or traffic.one_in > _WHOLE or old.sum() < _ENOUGH:
        return np.zeros(features.n, np.bool_)
    packets = np.bincount(flow[rows], minlength=int(flow.max()) + 1)
    data = np.bincount(flow[rows], traffic.packets.payload_length[rows] > 0, len(packets))
    short = packets <= _BARE
    if features.n >= _SEVERAL * features.sources:
        short |= np.bincount(flow[rows], context.tcp.fin[rows], len(packets)) > 0
    return np.asarray(((data == 1) & short)[flow[features.rows]] & old)


def _nothing_else(context: AnalysisContext, features: Features) -> list[str]:
    """Write a sentence if hellos are nearly all the data of their senders, who close about as often.

    In real sessions the hello is at most one of three data segments. Clients of a slow server retry, but
    don't close.
    """
    traffic = context.traffic
    if traffic.one_in <= _WHOLE:
        return []
    said = np.zeros(len(traffic), np.bool_)
    said[features.rows] = True
    mine = traffic.of_sources(said) & (traffic.packets.dport == features.top("dport").value) & context.tcp.tcp
    data = mine & (traffic.packets.payload_length > 0)
    part = features.packets / max(1.0, float(traffic.weight[data].sum()))
    closed = float(traffic.weight[mine & (context.tcp.fin | context.tcp.rst)].sum())
    if part < _ALL_DATA or closed < 0.5 * features.packets:
        return []
    return [f"{percent(part)} of the data segments of their senders are hellos, and they close as often"]


def _one_print(parsed: list[tls.Hello]) -> bool:
    """Check whether nearly all share one JA4; a flash crowd has many."""
    prints = Counter(hello.ja4 for hello in parsed if hello.ja4)
    return len(parsed) >= _ENOUGH and prints.total() > 0 and max(prints.values()) > 0.95 * len(parsed)


def _describe(parsed: list[tls.Hello]) -> list[str]:
    sentences = []
    names = Counter(hello.server_name for hello in parsed if hello.server_name)
    prints = Counter(hello.ja4 for hello in parsed if hello.ja4)
    if names:
        name, n = names.most_common(1)[0]
        sentences.append(f"{percent(n / len(parsed))} request server name {payload_text(name, limit=60)!r}")
    if prints:
        ja4, n = prints.most_common(1)[0]
        sentences.append(f"{percent(n / len(parsed))} have JA4 {ja4}")
    return sentences
