"""TCP answers to SYNs spoofed with this host's address: SYN-ACKs, RSTs, and block pages of censors.

Sources: Kührer et al., "Hell of a Handshake" (WOOT 2014), for SYN-ACKs, RSTs and retransmissions of
reflectors; Bock et al., "Weaponizing Middleboxes for TCP Reflected Amplification" (USENIX Security 2021).
"""

from __future__ import annotations

import numpy as np

from fwtop.analysis.classify.tcp import tcp_finding
from fwtop.analysis.context import AnalysisContext, Finding, confidence_of, count, plural
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, Rows, payload, weighted_top
from fwtop.model.rule import Match
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent

_PORTS = 32  # source ports that reflectors use at once
_PORT_SHARE = 0.01
_PRIVILEGED = 1024
_SERVERS = 8  # fewer: backscatter, or a page that a local user reads
_PAGE = np.frombuffer(b"HTTP/1.", np.uint8)
_NEXT = 1 << 20  # bytes between consecutive answers on a connection
_SERVICE_PRIOR = -6.0  # log-odds of spoofing if answers come from the ports of a few services


def syn_ack(context: AnalysisContext) -> list[Finding]:
    """Find SYN-ACKs of many servers for connections that this host never opened.

    The finding includes all TCP answers: SYN-ACKs with retransmissions, RSTs of closed ports, and
    SYNs of the same servers (RFC 9293 3.5, simultaneous open). ICMP errors count as its backscatter.
    """
    tcp, config = context.tcp, context.config
    features = context.features(tcp.syn_ack & context.unclaimed & ~(tcp.real | context.solicited))
    if not context.significant(features, floor_pps=config.reflection_pps, normal="tcp.syn_ack"):
        return []
    if features.sources < _SERVERS:
        return []  # backscatter: a few hosts are flooded with spoofed sources, among them this host
    if _goes_on(context, features):
        return []  # connections that this host opened continue
    ports = _ports(context, features.rows)
    few_ports = float(np.isin(context.traffic.packets.sport[features.rows], ports[:8]).mean()) > 0.8
    spoof = context.spoof(features.rows, prior=_SERVICE_PRIOR if few_ports else -2.5)
    every = context.features(np.sort(np.concatenate([features.rows, *_beside(context, features, ports)])))
    sport = features.top("sport")
    evidence = [
        f"{features.amount('SYN-ACKs')} from {plural(features.sources, 'server')}, "
        "for connections that this host never opened",
        f"{percent(sport.share)} come from port {sport.value}, to "
        f"{features.top('dport').distinct:,} local ports",
    ]
    if every.n > features.n:
        more = count(every.packets - features.packets)
        evidence.append(f"{more} RSTs and SYNs from the same ports answer the same spoofed SYNs")
    finding = tcp_finding(
        features,
        "syn_ack_reflection",
        "SYN-ACK reflection",
        confidence=0.95,
        evidence=evidence,
        flags=(SYN | ACK, SYN | ACK),
        spoof=spoof,
        rows=every.rows,
    )
    return [finding]


def middlebox(context: AnalysisContext) -> list[Finding]:
    """Find block pages and RSTs of middleboxes that answer requests without a handshake."""
    tcp, traffic, config = context.tcp, context.traffic, context.config
    packets = traffic.packets
    loaded = (tcp.ack | tcp.fin) & context.unclaimed & (packets.payload_length > 0) & ~context.solicited
    served = (packets.sport < _PRIVILEGED) | (packets.sport <= packets.dport)
    data = traffic.rows(np.asarray(loaded & served))
    if len(data) < config.min_samples:
        return []
    matrix, length = payload(packets, data, len(_PAGE))
    is_page = (matrix == _PAGE).all(1) & (length == len(_PAGE))
    if not is_page.any():
        return []
    is_page &= ~traffic.of_sources(tcp.syn_ack)[data]
    pages = data[is_page]
    of_boxes, boxes = traffic.of_sources(pages), context.features(pages).sources
    theirs = of_boxes[data]
    if boxes < _SERVERS or is_page.sum() < 0.5 * theirs.sum() or not _unasked(context, pages):
        return []
    ports = _ports(context, pages)
    mine = (of_boxes | (tcp.rst & ~tcp.real)) & np.isin(packets.sport, ports)
    features = context.features(np.asarray(mine & tcp.tcp & context.unclaimed & ~tcp.syn & ~tcp.syn_ack))
    if not context.significant(features, floor_pps=config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    return [_boxes(context, features, pages, boxes)]


def _boxes(context: AnalysisContext, features: Features, pages: Rows, boxes: int) -> Finding:
    packets = context.traffic.packets
    first, length = payload(packets, pages[:1], 40)
    line = first[0, : int(length[0])].tobytes().split(b"\r\n")[0]
    evidence = (
        f"{count(context.traffic.weight[pages].sum())} web pages from {plural(boxes, 'source')} for requests "
        f"that this host never sent, without a handshake; the first begins {payload_text(line, limit=40)!r}",
        f"with their RSTs {features.amount('packets')}, mean length {features.mean_length:.0f} bytes; "
        "censoring middleboxes answer like this (Bock et al. 2021)",
    )
    sport = features.top("sport")
    match = Match(protocol=TCP, sport=sport.value if sport.share > 0.98 else None)
    spoof = context.spoof(features.rows, prior=_SERVICE_PRIOR)
    title = "TCP middlebox reflection"
    return Finding(
        "middlebox_amplification",
        title,
        features.rows,
        confidence_of(0.9, len(pages)),
        evidence,
        spoof,
        match,
    )


def _unasked(context: AnalysisContext, pages: Rows) -> bool:
    """Check that pages don't follow each other on connections, as requested answers do."""
    traffic = context.traffic
    order = np.lexsort((traffic.packets.time_ns[pages], traffic.flow_key[pages]))
    flow, number = traffic.flow_key[pages][order], traffic.packets.tcp_seq[pages][order]
    step = (number[1:] - number[:-1]).view(np.int32)
    follows = (flow[1:] == flow[:-1]) & (step > 0) & (step < _NEXT)
    return int(follows.sum()) < 0.3 * len(pages)


def _ports(context: AnalysisContext, rows: Rows) -> list[int]:
    """Return the dominant source ports of the rows."""
    ports, weights = weighted_top(context.traffic.packets.sport[rows], context.traffic.weight[rows])
    return [int(port) for port in ports[:_PORTS][weights[:_PORTS] > _PORT_SHARE * weights.sum()]]


def _beside(context: AnalysisContext, features: Features, ports: list[int]) -> list[Rows]:
    """Find RSTs and SYNs from the reflectors' ports, which real clients don't use as source ports."""
    tcp, traffic = context.tcp, context.traffic
    stray: Mask = context.unclaimed & ~tcp.real & ~context.solicited
    same_port = np.isin(traffic.packets.sport, ports)
    reflectors = traffic.of_sources(features.rows)
    resets = tcp.rst & (same_port | reflectors)
    openings = tcp.syn & same_port & (reflectors | (traffic.packets.sport < _PRIVILEGED))
    return [traffic.rows(np.asarray(stray & (resets | openings)))]


def _goes_on(context: AnalysisContext, features: Features) -> bool:
    """Check for answers to connections of this host: the servers send more than a SYN-ACK."""
    tcp, traffic = context.tcp, context.traffic
    more = (tcp.ack | tcp.fin) & ~tcp.syn_ack
    if context.sparse:
        same_port = np.isin(traffic.packets.sport, [features.top("sport").value])
        return float(traffic.weight[more & same_port].sum()) > 1.5 * features.packets
    return float(traffic.of_sources(more)[features.rows].mean()) > 0.5
