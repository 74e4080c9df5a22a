"""Floods of ACK, RST and FIN packets, outside of connections and, as STOMP sends them, within.

Sources: RFC 9293 3.10.7; Mirai's source (attack_tcp_ack, attack_tcp_stomp); Imperva, "Breaking down Mirai"
(2016).
"""

from __future__ import annotations

import math

import numpy as np

from fwtop.analysis.classify.tcp import constants, stray, tcp_finding
from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.parsers.http import request_mask
from fwtop.analysis.parsers.tls import record_mask
from fwtop.analysis.window.features import Features, header_words
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN, ack_numbers
from fwtop.analysis.window.traffic import Rows
from fwtop.render.numbers import percent

_BARE = 5  # words of a TCP header without options
_ALONE = 0.9  # of the packets are alone in their flow; fewer if a capture only truncates connections
_ALL_ALONE, _SEEN = 0.98, 1_000  # in a sample as dense and large as that, no connections look like it
_FULL = 1_300  # bytes of an IP packet: full-sized ones are uploads
_TIRELESS = 10  # data packets on one connection without acknowledging any answer
_FLOWS = 5
_FLAGS = (SYN | RST | FIN | ACK, ACK)


def ack_flood(context: AnalysisContext) -> list[Finding]:
    """Find ACK or PSH-ACK packets that belong to no connection."""
    tcp, config = context.tcp, context.config
    features = context.features(stray(context, tcp.ack))
    if context.sampled:  # in a sampled capture all are alone in their flow; those of tools also lack options
        features = context.features(features.rows[header_words(context.traffic, features.rows) == _BARE])
    if not context.significant(features, floor_pps=config.flood_pps, normal="tcp.ack"):
        return []
    # A SYN flood may have claimed the SYNs of real clients; FINs tell their number
    weight, mine = context.traffic.weight, context.unclaimed | tcp.real
    if not context.sparse:  # connections of other sources explain none of these
        mine = mine & context.traffic.of_sources(features.rows)
    ends = float(weight[tcp.fin & mine].sum())
    openings = max(2 * ends, ends + float(weight[(tcp.syn | tcp.syn_ack) & mine].sum()))
    spoof = context.spoof(features.rows)
    signs = constants(features, ("tcp_window", "tcp_seq", "ip_id", "ttl")) + _one_size(context, features)
    lonely = features.flow_singles > 0.5 and _unopened(context, features, openings)
    replayed = features.flow_singles <= 0.5
    live = context.traffic.live  # a fast tool soon comes round to the same source ports
    alone = _unlike_hosts(context, features) if live else features.flow_singles > _ALONE
    backed = bool(signs) or spoof.probability > 0.5 or alone or context.baseline.ready
    if context.sampled and not (signs or spoof.probability > 0.8):
        return []
    if not ((lonely and backed) or replayed or spoof.probability > 0.8):
        return []
    dport = features.top("dport")
    data = float((features.traffic.packets.payload_length[features.rows] > 0).mean())
    evidence = [
        f"{features.amount('ACK packets')} from {features.senders} belong to no connection: "
        f"{percent(features.flow_singles)} are the only packet of their flow"
        if lonely
        else f"{features.amount('ACK packets')} whose sequence numbers don't advance as in a connection",
        f"{percent(data)} carry data; {percent(dport.share)} go to port {dport.value}",
        *signs,
    ]
    title = "PSH-ACK flood" if data > 0.5 else "ACK flood"
    confidence = 0.92 if spoof.probability > 0.8 or replayed else 0.8
    return [
        tcp_finding(
            features, "ack_flood", title, confidence=confidence, evidence=evidence, flags=_FLAGS, spoof=spoof
        )
    ]


def stomp(context: AnalysisContext) -> list[Finding]:
    """Find STOMP: data of one size on established connections that acknowledges no answer."""
    traffic, tcp = context.traffic, context.tcp
    packets = traffic.packets
    if context.sparse:
        return []
    rows = traffic.rows(tcp.ack & tcp.real & context.unclaimed & (packets.payload_length > 0))
    rows = rows[packets.ip_length[rows] < _FULL]
    if len(rows) < context.config.min_samples:
        return []
    inverse = traffic.flow_id[rows]
    counts = np.bincount(inverse)
    if (counts >= _TIRELESS).sum() < _FLOWS:
        return []
    odd = (counts >= _TIRELESS) & _constant(packets.payload_length[rows], inverse, len(counts))
    odd &= _constant(ack_numbers(traffic, rows), inverse, len(counts))
    junk = rows[odd[inverse]]
    junk = junk[~request_mask(traffic, junk) & ~record_mask(traffic, junk)]
    flows = len(np.unique(inverse[odd[inverse]]))
    if flows < _FLOWS:
        return []
    every = traffic.rows(tcp.tcp & context.unclaimed & traffic.of_flows(junk))
    features, data = context.features(every), context.features(junk)
    if not context.significant(features, floor_pps=context.config.flood_pps, normal="tcp.ack"):
        return []
    size = data.top("payload_length")
    evidence = [
        f"{data.amount('data packets')} on {flows:,} connections from "
        f"{features.senders}, none of which acknowledges data from this host",
        f"{percent(size.share)} carry {size.value} bytes; they are neither TLS nor HTTP",
    ]
    spoof = context.spoof(features.rows, completed=1.0)
    title = "PSH-ACK flood on open connections (STOMP)"
    return [
        tcp_finding(
            features, "ack_flood", title, confidence=0.85, evidence=evidence, flags=_FLAGS, spoof=spoof
        )
    ]


def _constant(values: np.ndarray[tuple[int], np.dtype[np.generic]], group: Rows, groups: int) -> np.ndarray:
    """Mark the groups in which all values are equal."""
    low = np.full(groups, np.iinfo(np.int64).max)
    high = np.full(groups, -1, np.int64)
    np.minimum.at(low, group, values.astype(np.int64))
    np.maximum.at(high, group, values.astype(np.int64))
    return np.asarray(low == high)


def _one_size(context: AnalysisContext, features: Features) -> list[str]:
    """Write a sentence if data comes in packets of one size: requests vary, and uploads are full-sized."""
    packets = context.traffic.packets
    data = context.features(features.rows[packets.payload_length[features.rows] > 0])
    length = data.top("ip_length")
    if data.n < 50 or data.share < 0.3 * features.share or length.share < 0.8 or length.value >= _FULL:
        return []
    return [f"{percent(length.share)} of the packets with data have IP length {length.value}"]


def _unopened(context: AnalysisContext, features: Features, openings: float) -> bool:
    """Check whether fewer connections were opened than the single packets require.

    If one in N is sampled and a share s of the packets is alone in its flow, flows have about
    -ln(s) N packets (Poisson), of which one opens and one closes the connection.
    """
    length = max(2.0, -math.log(min(0.999, features.flow_singles)) * features.traffic.one_in)
    expected = min(0.1, 0.75 / length) if not context.sparse else 0.75 / length
    return openings < expected * features.packets


def _unlike_hosts(context: AnalysisContext, features: Features) -> bool:
    """Check for sources that send each packet in another flow, more of these than hosts have connections.

    Large proxies keep as many connections open. Theirs show more than one packet each, unless the sample is
    thin, and carry timestamps. If hardly two packets of a dense sample share a flow, nothing is connected.
    """
    bare = float((header_words(context.traffic, features.rows) == _BARE).mean())
    if not context.sparse and bare > _ALONE and features.flow_singles > _ALL_ALONE and features.n >= _SEEN:
        return True
    thick = not context.sparse or bare > _ALONE
    return thick and features.pps_per_source > context.config.flood_pps


def rst_flood(context: AnalysisContext) -> list[Finding]:
    """Find RSTs beyond the number of connections."""
    features = context.features(stray(context, context.tcp.rst))
    return _ends(context, features, "rst_flood", title="RST flood", normal="tcp.rst", flags=(RST | SYN, RST))


def fin_flood(context: AnalysisContext) -> list[Finding]:
    """Find FINs beyond the number of connections."""
    features = context.features(stray(context, context.tcp.fin))
    return _ends(
        context, features, "fin_flood", title="FIN flood", normal="tcp.fin", flags=(FIN | SYN | RST, FIN)
    )


def _ends(
    context: AnalysisContext,
    features: Features,
    kind: str,
    *,
    title: str,
    normal: str,
    flags: tuple[int, int],
) -> list[Finding]:
    config = context.config
    if not context.significant(features, floor_pps=config.flood_pps, normal=normal):
        return []
    tcp, weight = context.tcp, context.traffic.weight
    # Connections end about as often as they begin; packets claimed by a SYN flood or a reflection
    # began none. In a thin sample, the rows include the ends of real connections.
    causes = float(weight[(tcp.syn | tcp.syn_ack) & context.unclaimed].sum())
    if context.sparse:  # estimate connections from their other packets
        causes = 2 * causes + float(weight[tcp.ack & context.unclaimed].sum())
    if causes > features.packets or features.share < 0.02:
        return []
    if features.sources < 3 and features.pps < config.flood_pps:
        return []
    dport = features.top("dport")
    evidence = [
        f"{features.amount(f'{title.split(maxsplit=1)[0]} packets')} from {features.senders}, but only "
        f"{count(causes)} SYNs or SYN-ACKs that could explain them",
        f"{percent(dport.share)} go to port {dport.value}",
        *constants(features, ("tcp_window", "tcp_seq", "ip_id", "ttl")),
    ]
    spoof = context.spoof(features.rows)
    return [tcp_finding(features, kind, title, confidence=0.88, evidence=evidence, flags=flags, spoof=spoof)]
