"""Floods of TLS handshakes: cheap for the client, dear for the server (RFC 8446 appendix, THC-SSL-DOS)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.advise import tls
from fwtop.advise.classify.http import fast_rows, outside_connections, with_connections
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.traffic import TCP, payload
from fwtop.model.packets import Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match
from fwtop.model.text import payload_text

_PATIENCE_NS = 500_000_000  # after that a client has had its answer and gone on
_ENOUGH = 100
_PROBERS = 10  # that look every second or so whether a server still answers
_SEVERAL = 3  # hellos of one source
_WHOLE = 1.5  # packets for each sample, up to which a connection's are mostly seen together
_ALL_DATA = 0.8  # of the segments with data
_HANDSHAKE, _APPLICATION_DATA = 22, 23
_TINY_RECORD = 96  # bytes: a HEADERS frame of an indexed request, or a reset
_BARE = 5  # SYN, ACK, hello, ACK of the server's answer, FIN or RST
_HANDSHAKES = 10  # records of handshakes on one connection: a client needs 3
_FLOWS = 3  # connections like that


def hellos(scene: Scene) -> list[Finding]:
    """Client hellos faster than browsers open connections, or outside of any connection."""
    packets = scene.traffic.packets
    data = scene.traffic.rows(scene.tcp.ack & scene.free & (packets.payload_length > 0))
    if len(data) < scene.config.min_samples:
        return []
    rows = data[tls.hello_mask(scene.traffic, data)]
    facts = scene.facts(rows)
    if not scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    limit = scene.config.request_rate_per_source
    reasons = []
    fast = fast_rows(facts, limit)
    if fast.mean() > 0.3:
        facts = scene.facts(facts.rows[fast])
        reasons.append(f"their sources open more than {limit:.0f} sessions a second each")
    stray = outside_connections(scene, facts)
    if stray:
        reasons.append("they belong to no connection: nobody did a handshake before")
    parsed = tls.hellos(scene.traffic, facts.spread(384))
    if not reasons and (facts.n >= _SEVERAL * facts.sources or _one_print(parsed)):
        stalled = _stalled(scene, facts)
        probes = facts.sources < _PROBERS and float(stalled.sum()) / scene.traffic.seconds < limit
        if not probes and stalled.mean() > 0.5 and stalled.sum() >= _ENOUGH:
            reasons.append(f"{percent(stalled.mean())} of their connections send nothing after it")
            facts = scene.facts(facts.rows[stalled])
        elif facts.n >= _ENOUGH and facts.sources >= _PROBERS:
            reasons += _nothing_else(scene, facts)
    if not reasons:
        return []
    evidence = [f"{count(facts.packets)} TLS client hellos ({count(facts.pps)}/s) of {facts.senders}"]
    evidence += reasons + _describe(parsed)
    spoof = scene.spoof(facts.rows, prior=0.0 if stray else -4.0)
    rows = facts.rows[~scene.tcp.real[facts.rows]] if stray else with_connections(scene, facts)
    dport = facts.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    return [
        Finding("tls_flood", "TLS handshake flood", rows, sure(0.9, facts.n), tuple(evidence), spoof, match)
    ]


def renegotiations(scene: Scene) -> list[Finding]:
    """Connections on which the client begins one handshake after the other (CVE-2011-1473, THC-SSL-DOS)."""
    traffic = scene.traffic
    data = traffic.rows(scene.tcp.ack & scene.free & (traffic.packets.payload_length > 0))
    if scene.thin or len(data) < scene.config.min_samples:
        return []
    head, length = payload(traffic.packets, data, 3)
    data = data[(head[:, 0] == _HANDSHAKE) & (head[:, 1] == 3) & (length == 3)]
    counts = np.bincount(traffic.flow_id[data], minlength=1)
    facts = scene.facts(data[counts[traffic.flow_id[data]] >= _HANDSHAKES])
    flows = int((counts >= _HANDSHAKES).sum())
    floor = scene.config.reflection_pps
    if flows < _FLOWS or not scene.significant(facts, floor_pps=floor, normal="tcp.ack", shaped=True):
        return []
    evidence = (
        f"{count(facts.packets)} handshake records ({count(facts.pps)}/s) of {facts.senders} on {flows:,} "
        f"connections, {facts.n / flows:.0f} each: a client needs 3",
    )
    dport = facts.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    spoof = scene.spoof(facts.rows, prior=-4.0)
    rows, title = with_connections(scene, facts), "TLS renegotiation flood"
    return [Finding("tls_flood", title, rows, sure(0.9, facts.n), evidence, spoof, match)]


def small_records(scene: Scene) -> list[Finding]:
    """Segments packed with tiny TLS records, one after the other: HTTP/2 requests by the dozen.

    Source: CVE-2023-44487 (rapid reset), as Cloudflare and Google described it in 2023: HEADERS and
    RST_STREAM frames of some 40 bytes each, and no flow control that would slow them.
    """
    packets, config = scene.traffic.packets, scene.config
    data = scene.traffic.rows(scene.tcp.ack & scene.free & (packets.payload_length > 3 * _TINY_RECORD))
    if scene.thin or len(data) < config.min_samples:
        return []
    data = data[tls.record_mask(scene.traffic, data)]
    head, length = payload(packets, data, 5)
    record = (head[:, 3].astype(np.int64) << 8) | head[:, 4]
    tiny = (head[:, 0] == _APPLICATION_DATA) & (record <= _TINY_RECORD) & (length == 5)
    facts = scene.facts(data[tiny])
    if not scene.significant(facts, floor_pps=config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    fast = fast_rows(facts, config.request_rate_per_source)
    if fast.mean() < 0.5:
        return []
    facts = scene.facts(facts.rows[fast])
    each = float(packets.payload_length[facts.rows].mean()) / (float(record[tiny].mean()) + 5)
    evidence = (
        f"{count(facts.packets)} segments ({count(facts.pps)}/s) of {facts.senders} hold about "
        f"{each:.0f} TLS records of {record[tiny].mean():.0f} bytes each: requests by the dozen",
        "HTTP/2 clients that wait for answers don't send so (CVE-2023-44487)",
    )
    dport = facts.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    spoof = scene.spoof(facts.rows, prior=-4.0)
    rows = with_connections(scene, facts)
    return [Finding("http_flood", "HTTP/2 request flood", rows, sure(0.75, facts.n), evidence, spoof, match)]


def _stalled(scene: Scene, facts: Facts) -> Mask:
    """Tell the hellos, of those that had time, whose connection ends with them.

    Browsers finish the handshake, ask and acknowledge; they ask again where the server is too slow. Who
    opens several and closes each without having finished its handshake is none, whatever it acknowledged.
    None where sampling or too short a capture hides that.
    """
    traffic = scene.traffic
    time = traffic.packets.time_ns
    old = time[facts.rows] < time.max() - _PATIENCE_NS
    if scene.thin or traffic.one_in > _WHOLE or old.sum() < _ENOUGH:
        return np.zeros(facts.n, np.bool_)
    rows = traffic.rows(scene.tcp.tcp)
    flow = traffic.flow_id
    packets = np.bincount(flow[rows], minlength=int(flow.max()) + 1)
    data = np.bincount(flow[rows], traffic.packets.payload_length[rows] > 0, len(packets))
    short = packets <= _BARE
    if facts.n >= _SEVERAL * facts.sources:
        short |= np.bincount(flow[rows], scene.tcp.fin[rows], len(packets)) > 0
    return np.asarray(((data == 1) & short)[flow[facts.rows]] & old)


def _nothing_else(scene: Scene, facts: Facts) -> list[str]:
    """Say that in a sample hellos are nearly all that their senders say, who close about as often.

    Of real sessions the hello is one of three segments with data, or fewer. Those whom a slow server keeps
    waiting send it again, but don't close.
    """
    traffic = scene.traffic
    if traffic.one_in <= _WHOLE:
        return []
    said = np.zeros(len(traffic), np.bool_)
    said[facts.rows] = True
    mine = traffic.of_sources(said) & (traffic.packets.dport == facts.top("dport").value) & scene.tcp.tcp
    data = mine & (traffic.packets.payload_length > 0)
    part = facts.packets / max(1.0, float(traffic.weight[data].sum()))
    closed = float(traffic.weight[mine & (scene.tcp.fin | scene.tcp.rst)].sum())
    if part < _ALL_DATA or closed < 0.5 * facts.packets:
        return []
    return [f"{percent(part)} of what their senders say in a sample are these, and they close as often"]


def _one_print(parsed: list[tls.Hello]) -> bool:
    """Tell whether nearly all have one JA4: a crowd has many browsers."""
    prints = Counter(hello.ja4 for hello in parsed if hello.ja4)
    return len(parsed) >= _ENOUGH and prints.total() > 0 and max(prints.values()) > 0.95 * len(parsed)


def _describe(parsed: list[tls.Hello]) -> list[str]:
    sentences = []
    names = Counter(hello.server_name for hello in parsed if hello.server_name)
    prints = Counter(hello.ja4 for hello in parsed if hello.ja4)
    if names:
        name, n = names.most_common(1)[0]
        sentences.append(f"{percent(n / len(parsed))} ask for server name {payload_text(name, limit=60)!r}")
    if prints:
        ja4, n = prints.most_common(1)[0]
        sentences.append(f"{percent(n / len(parsed))} have JA4 {ja4}")
    return sentences
