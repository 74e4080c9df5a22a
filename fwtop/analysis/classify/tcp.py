"""SYN floods, invalid flags, and helpers of all TCP rules. Sources: RFC 4987 (SYN), RFC 9293."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding, confidence_of, count
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.features import Features, header_words
from fwtop.analysis.window.tcp_view import ACK, SYN, flag_names
from fwtop.analysis.window.traffic import TCP, Rows, mix
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent

_BARE = 5  # words of a TCP header without options
_CHANCE = 4.0  # standard deviations by which a sample may hold more RSTs than SYNs
_SCANNED_PPS = 100.0  # background scans that a host receives, at most


def odd_flags(context: AnalysisContext) -> list[Finding]:
    """Find flag combinations that no TCP stack sends: Xmas, null, SYN+FIN and the like."""
    features = context.features(context.tcp.odd & context.unclaimed)
    config = context.config
    if not context.significant(features, floor_pps=config.reflection_pps, normal="tcp.odd", shaped=True):
        return []
    top = features.top("tcp_flags")
    name = flag_names(top.value)
    evidence = [f"{features.amount('TCP packets with invalid flags')}; {percent(top.share)} have {name}"]
    flags = (63, top.value & 63) if top.share > 0.9 else None
    return [
        tcp_finding(
            features,
            "tcp_anomaly",
            f"TCP packets with invalid flags ({name})",
            confidence=0.95,
            evidence=evidence,
            flags=flags,
            spoof=context.spoof(features.rows),
        )
    ]


def syn_flood(context: AnalysisContext) -> list[Finding]:
    """Find SYNs that no connection follows."""
    tcp = context.tcp
    goes_on = context.traffic.of_flows(tcp.unseen)  # flows with truncated flags may have continued
    unanswered = tcp.syn & context.unclaimed & ~(tcp.completed | goes_on)
    if not context.sparse:
        unanswered &= context.unestablished
    features = context.features(unanswered)
    config = context.config
    if not context.significant(features, floor_pps=config.flood_pps, normal="tcp.syn"):
        return []
    bare = context.features(features.rows[header_words(context.traffic, features.rows) == _BARE])
    crafted = bare.share > 0.1 * features.share and context.significant(
        bare, floor_pps=config.flood_pps, normal="tcp.syn"
    )
    if crafted and bare.share < 0.9 * features.share and _crowd(context, features):
        features = bare  # crafted SYNs among those of real clients
    signs = constants(features, ("tcp_window", "tcp_seq", "ip_id", "sport", "ttl"))
    if not crafted and _crowd(context, features):
        return []
    completed = float(tcp.completed[tcp.syn & context.unclaimed].mean())
    # If connections can be followed, none of these was completed
    spoof = context.spoof(features.rows, completed=completed if context.sparse else 0.0)
    dport = features.top("dport")
    if dport.share < 0.5 and _background(context, features, spoof):
        return []
    evidence = [
        f"{features.amount('SYNs')} from {features.senders}; "
        f"{percent(completed)} of all SYNs led to a connection"
    ]
    evidence.append(
        f"{percent(dport.share)} go to port {dport.value}"
        if dport.share > 0.3
        else f"they go to {dport.distinct:,} different ports"
    )
    if crafted:
        evidence.append("they carry no TCP options; the SYN of every operating system does (RFC 9293 3.7.1)")
    load = features.traffic.packets.payload_length[features.rows]
    if (load > 0).mean() > 0.5:
        evidence.append(f"they carry data (mean {load.mean():.0f} bytes)")
    confidence = 0.97 if crafted or signs or spoof.probability > 0.8 else 0.85
    resets = _resets(context, features)
    if len(resets):
        evidence.append(
            f"{count(context.traffic.weight[resets].sum())} RSTs of the same sources are included"
        )
    return [
        tcp_finding(
            features,
            "syn_flood",
            "SYN flood",
            confidence=confidence,
            evidence=evidence + signs,
            flags=(SYN | ACK, SYN),
            spoof=spoof,
            rows=np.sort(np.concatenate([features.rows, resets])),
        )
    ]


def _background(context: AnalysisContext, features: Features, spoof: Spoof) -> bool:
    """Check for background scans, which every internet address receives, and attempts at closed ports.

    An address receives some packets per minute (Wustrow et al., "Internet Background Radiation Revisited",
    2010). Scanners need the answers, so spoofed sources are not part of it.
    """
    pace = features.packets / max(context.traffic.seconds, 1.0)
    if features.sources <= 3 and features.top("dport").share < 0.1 and pace < context.config.flood_pps:
        return True
    if context.traffic.live or spoof.probability > 0.9:
        return False
    return features.pps < max(20.0, features.destinations.distinct) or (
        features.share < 0.5 and features.pps < _SCANNED_PPS
    )


def stray(context: AnalysisContext, mask: Mask) -> Mask:
    """Mark unclaimed packets outside connections that nobody asked for.

    If sampling is dense, only those of sources without any connection.
    """
    stray = mask & context.unclaimed & ~context.tcp.real & ~context.solicited
    return stray if context.sparse else np.asarray(stray & context.unestablished)


def tcp_finding(
    features: Features,
    kind: str,
    title: str,
    *,
    confidence: float,
    evidence: list[str],
    flags: tuple[int, int] | None,
    spoof: Spoof,
    rows: Rows | None = None,
) -> Finding:
    """Make a finding of the features' rows, or of `rows` if it includes more."""
    dport, sport = features.top("dport"), features.top("sport")
    match = Match(
        protocol=TCP,
        dport=dport.value if dport.share > 0.98 else None,
        sport=sport.value if sport.share > 0.98 and sport.value else None,
        tcp_flags=flags,
    )
    return Finding(
        kind,
        title,
        features.rows if rows is None else rows,
        confidence_of(confidence, features.n),
        tuple(evidence),
        spoof,
        match,
    )


def constants(features: Features, columns: tuple[str, ...]) -> list[str]:
    """Describe fields in which one value dominates although real hosts differ."""
    names = {
        "tcp_window": "window",
        "tcp_seq": "sequence number",
        "ip_id": "IP id",
        "sport": "source port",
        "ttl": "TTL",
        "ip_length": "IP length",
    }
    if features.sources < 20:
        return []
    four = features.top("family").value == 4  # IPv6 has IDs only in fragments
    found = features.constants(columns if four else tuple(name for name in columns if name != "ip_id"), 0.9)
    # Linux sets IP ID 0 only in SYN-ACKs and RSTs; TTL 64 or 128 is common on a LAN, too.
    return [f"{percent(top.share)} have {names[name]} {top.value}" for name, top in found.items()]


def _resets(context: AnalysisContext, features: Features) -> Rows:
    """Find the RSTs of hosts that got a SYN-ACK for a SYN their kernel never sent (Moore et al. 2001).

    Besides the owners of forged addresses, these are the senders themselves if a tool bypasses their kernel.
    A thin sample hardly holds both packets of a flow, so all RSTs of its sources to the ports it hits count.
    """
    traffic = context.traffic
    pool: Rows = traffic.rows(context.tcp.rst & context.unclaimed)
    pool = pool[header_words(traffic, pool) == _BARE]
    if len(pool) == 0:
        return pool
    aimed = mix(traffic.source_key, traffic.packets.dport.astype(np.uint64))
    mine: Rows = pool[np.isin(aimed[pool], np.unique(aimed[features.rows]))]
    chance = _CHANCE * float(np.sqrt(traffic.weight[mine].sum() * traffic.one_in))
    answered = float(traffic.weight[mine].sum()) <= features.packets + chance
    return mine if answered else mine[:0]


def _crowd(context: AnalysisContext, features: Features) -> bool:
    """Check for a flash crowd: most SYNs become connections; in a thin sample, more packets follow."""
    tcp, weight = context.tcp, context.traffic.weight
    if context.sparse:
        return float(weight[tcp.ack | tcp.fin].sum()) > 1.5 * features.packets
    return features.packets < 0.5 * float(weight[tcp.syn].sum())
