"""Floods of GRE, ESP, ICMP, rarer protocols and fragments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding, confidence_of, count
from fwtop.analysis.parsers import icmp
from fwtop.analysis.window import conversations
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import ESP, GRE, ICMP, ICMP6, TCP, UDP, Rows, distinct_texts, mix, payload
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Fragment, Mask
from fwtop.render.numbers import percent

# IGMP, IPv6 extension headers, EIGRP, OSPF, PIM, VRRP: control traffic of a network
_HOUSEKEEPING = (0, 2, 59, 88, 89, 103, 112)
_NEIGHBOURS = 20
_SPIS = 4  # per peer: one each way, two during rekeying
_MANY = 20  # protocols at once: no network uses that many


def gre(context: AnalysisContext) -> list[Finding]:
    """Find GRE floods: more peers or higher rates than tunnels have."""
    return _by_protocol(context, GRE, "gre_flood", "GRE flood", "gre")


def esp(context: AnalysisContext) -> list[Finding]:
    """Find ESP floods: more security associations than peers have."""
    return _by_protocol(context, ESP, "esp_flood", "ESP flood", "esp")


def other(context: AnalysisContext) -> list[Finding]:
    """Find floods of IP protocols that servers don't use."""
    packets = context.traffic.packets
    known = np.isin(packets.protocol, (TCP, UDP, ICMP, ICMP6, GRE, ESP))
    pool = ~known & context.unclaimed & (packets.family != 0) & ~context.traffic.later
    features = context.features(pool & ~_housekeeping(context, pool))
    if (
        features.top("protocol").distinct >= _MANY
    ):  # random protocols: include those that have a rule of their own
        rest = context.unclaimed & ~np.isin(packets.protocol, (TCP, UDP)) & (packets.family == 4)
        features = context.features(np.asarray(rest & ~context.traffic.later))
    if not context.significant(features, floor_pps=context.config.flood_pps, normal="other") or _tunnel(
        features
    ):
        return []
    top = features.top("protocol")
    what = f"IP protocol {top.value}" if top.share > 0.9 else f"{top.distinct} IP protocols"
    evidence = (
        f"{features.amount(f'packets of {what}')} from {features.senders}, "
        f"mean length {features.mean_length:.0f} bytes",
    )
    match = Match(protocol=top.value if top.share > 0.98 else None)
    spoof = context.spoof(features.rows)
    title = f"Flood of {what}"
    return [
        Finding(
            "ip_protocol_flood", title, features.rows, confidence_of(0.9, features.n), evidence, spoof, match
        )
    ]


def _housekeeping(context: AnalysisContext, pool: Mask) -> Mask:
    """Mark control traffic of routers: to multicast groups, or from the few neighbours of a link."""
    packets = context.traffic.packets
    mask = np.asarray(pool & np.isin(packets.protocol, _HOUSEKEEPING))
    unicast = context.features(mask & ~context.traffic.group)
    if unicast.sources > _NEIGHBOURS:
        mask[unicast.rows] = False
    return mask


def _by_protocol(
    context: AnalysisContext, protocol: int, kind: str, title: str, normal: str
) -> list[Finding]:
    mask: Mask = (context.traffic.packets.protocol == protocol) & context.unclaimed & ~context.traffic.later
    features = context.features(mask)
    if not context.significant(features, floor_pps=context.config.flood_pps, normal=normal) or _tunnel(
        features
    ):
        return []
    if protocol == GRE and _same_inside(context, features):
        return []
    if protocol == ESP and _associations(context, features):
        return []
    matrix, _ = payload(context.traffic.packets, features.sample, 8)
    first = np.ascontiguousarray(matrix[:, :4]).view(">u4").reshape(-1)
    evidence = [
        f"{features.amount(f'{title.split(maxsplit=1)[0]} packets')} from {features.senders}, "
        f"mean length {features.mean_length:.0f} bytes"
    ]
    if protocol == ESP:
        evidence.append(f"{len(np.unique(first)):,} different SPIs in {len(first):,} packets")
    spoof = context.spoof(features.rows)
    match = Match(protocol=protocol)
    return [
        Finding(kind, title, features.rows, confidence_of(0.93, features.n), tuple(evidence), spoof, match)
    ]


def _associations(context: AnalysisContext, features: Features) -> bool:
    """Check for real ESP: few SPIs per peer, and increasing sequence numbers (RFC 4303 2.2)."""
    matrix, _ = payload(context.traffic.packets, features.rows, 4)
    spi = np.ascontiguousarray(matrix).view(">u4").reshape(-1).astype(np.uint64)
    pairs = len(np.unique(mix(context.traffic.source_key[features.rows], spi)))
    return pairs <= _SPIS * features.sources and conversations.counts_up(context.traffic, features.rows)


def _same_inside(context: AnalysisContext, features: Features) -> bool:
    """Check for real GRE: a few peers whose inner addresses repeat, as those behind a tunnel do."""
    matrix, held = payload(context.traffic.packets, features.sample, 24)
    inner = matrix[(held == 24) & (matrix[:, 2] == 8) & (matrix[:, 3] == 0), 16:24]
    few = features.sources < 10 and features.pps_per_source < 20_000 and len(inner) > 0.9 * len(matrix)
    return few and len(np.unique(distinct_texts(inner))) < 0.2 * len(inner)


def _tunnel(features: Features) -> bool:
    """Check for a tunnel: a few peers with packets of many sizes at a moderate rate."""
    lengths = features.top("ip_length")
    return (
        features.sources < 10
        and features.pps_per_source < 20_000
        and lengths.distinct > 10
        and lengths.share < 0.8
    )


_NAMES = {
    0: "echo reply",
    3: "destination unreachable",
    8: "echo request",
    11: "time exceeded",
    13: "timestamp",
}
_PINGED_PPS = 200.0  # of a few monitoring hosts
_NAMES6 = {
    1: "destination unreachable",
    3: "time exceeded",
    128: "echo request",
    129: "echo reply",
    133: "router solicitation",
    134: "router advertisement",
    135: "neighbour solicitation",
    136: "neighbour advertisement",
    137: "redirect",
}


def icmp_flood(context: AnalysisContext) -> list[Finding]:
    """Find ICMP floods; count ICMP errors only if they are most of the traffic.

    Errors beside another attack are its backscatter, not an attack of their own.
    """
    packets = context.traffic.packets
    ordinary = icmp.neighbours(context.traffic)
    ordinary &= ~icmp.neighbour_flood(context.traffic, context.config.flood_pps)
    family = (packets.protocol == ICMP) | ((packets.protocol == ICMP6) & ~ordinary)
    pool = family & context.unclaimed & (packets.family != 0)
    errors = icmp.errors(context.traffic)
    plain = context.features(pool & ~errors)
    every = context.features(pool)
    others = sum(context.traffic.share(finding.rows) for finding in context.findings)
    weapon = every.share > 0.5 or every.pps_per_source > 50
    features = every if weapon and others < 0.1 else plain
    if not context.significant(features, floor_pps=context.config.flood_pps, normal="icmp"):
        return []
    if features.sources < 20 and min(features.peak_pps, features.packets) < _PINGED_PPS:
        return []  # ordinary pings
    top, protocol = features.top("icmp_type"), features.top("protocol")
    names = _NAMES if protocol.value == ICMP else _NAMES6
    name = names.get(top.value, f"type {top.value}")
    title = "ICMP flood"
    if name == "echo reply" and top.share > 0.8 and features.sources >= 8:
        title = "ICMP echo-reply reflection"
    if protocol.value == ICMP6 and top.share > 0.8 and icmp.is_discovery(top.value):
        title = f"ICMPv6 {name} flood"
    evidence = [
        f"{features.amount('ICMP packets')} from {features.senders}, {percent(top.share)} of type {name}",
        f"mean length {features.mean_length:.0f} bytes",
    ]
    if protocol.value == ICMP6 and icmp.is_discovery(top.value):
        evidence.append("they come from the link itself: the switch can stop them (RA Guard, RFC 6105)")
    match = Match(
        protocol=protocol.value if protocol.share > 0.98 else None,
        icmp_type=top.value if top.share > 0.95 else None,
        family=4 if protocol.value == ICMP else 6,
    )
    spoof = context.spoof(features.rows, prior=-3.0 if name == "echo reply" else 0.0)
    return [
        Finding(
            "icmp_flood", title, features.rows, confidence_of(0.93, features.n), tuple(evidence), spoof, match
        )
    ]


_MOST = 0.9  # of the later fragments: the rest lost their first fragment
_MOST_OF_ANSWERS = 0.6  # reflectors answer in fragments, of which routers drop some
_SERVERS = 10  # storage and video servers of a host, which send complete datagrams
_HONEST_BYTES = 500
_MOST_PIECES = 46  # of a datagram of 64 KiB
_INTACT = 0.8  # of the datagrams have all their pieces


def attach(context: AnalysisContext) -> None:
    """Add later fragments to the newest finding if its first fragments have the same sources."""
    finding = context.findings[-1]
    packets, traffic = context.traffic.packets, context.traffic
    heads = finding.rows[packets.fragment[finding.rows] == Fragment.FIRST]
    if len(heads) == 0:
        return
    protocol = packets.protocol[heads[0]]
    later = traffic.rows(traffic.later & context.unclaimed & (packets.protocol == protocol))
    if len(later) == 0:
        return
    mine = _same_datagram(context, heads, later)
    if "amplification" in finding.kind:
        mine |= traffic.of_sources(finding.rows)[later]
    most = _MOST_OF_ANSWERS if "amplification" in finding.kind else _MOST
    if mine.mean() > most or (context.sparse and (mine.mean() > 0.5 or _as_many(context, heads, later))):
        mine[:] = True  # the first fragments of the rest were not sampled
    if not mine.any():
        return
    rows = np.sort(np.concatenate([finding.rows, later[mine]]))
    sentence = f"{count(traffic.weight[later[mine]].sum())} later fragments of its datagrams are included"
    context.findings[-1] = replace(finding, rows=rows, evidence=(*finding.evidence, sentence))
    context.unclaimed[later[mine]] = False


def fragment_flood(context: AnalysisContext) -> list[Finding]:
    """Find fragments of datagrams without a first fragment, or too small for any MTU."""
    packets = context.traffic.packets
    features = context.features(
        (packets.fragment != Fragment.NONE) & context.unclaimed & (packets.family != 0)
    )
    if not context.significant(features, floor_pps=context.config.flood_pps, normal="fragment"):
        return []
    later = float((packets.fragment[features.rows] == Fragment.LATER).mean())
    datagrams = len(np.unique(_datagrams(context, features.rows)))
    if _whole(context, features, datagrams):
        return []
    evidence = (
        f"{features.amount('fragments')} from {features.senders}, {percent(later)} of them not the first",
        f"{features.n / max(datagrams, 1):.1f} per datagram, mean length {features.mean_length:.0f} bytes",
    )
    protocol = features.top("protocol")
    match = Match(protocol=protocol.value if protocol.share > 0.98 else None, fragment=True)
    spoof = context.spoof(features.rows)
    return [
        Finding(
            "fragment_flood",
            "Fragment flood",
            features.rows,
            confidence_of(0.88, features.n),
            evidence,
            spoof,
            match,
        )
    ]


def _whole(context: AnalysisContext, features: Features, datagrams: int) -> bool:
    """Check for complete large datagrams of a few servers: NFS, video or a DNS transfer.

    Of a datagram of k pieces one is the first. If one packet in N is sampled, each piece is seen with
    probability 1 / N, so that as many datagrams show as the first fragments lead one to expect.
    """
    packets = context.traffic.packets
    heads = int((packets.fragment[features.rows] == Fragment.FIRST).sum())
    if features.sources >= _SERVERS or features.mean_length <= _HONEST_BYTES or not heads:
        return False
    pieces, seen = features.n / heads, min(1.0, 1 / max(1.0, context.traffic.one_in))
    expected = heads / seen * (1 - (1 - seen) ** pieces)
    return pieces <= _MOST_PIECES and datagrams < expected / _INTACT


def _datagrams(context: AnalysisContext, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    traffic = context.traffic
    return mix(
        traffic.source_key[rows] ^ traffic.dest_key[rows], traffic.packets.ip_id[rows].astype(np.uint64)
    )


def _same_datagram(
    context: AnalysisContext, heads: Rows, later: Rows
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(_datagrams(context, later), np.unique(_datagrams(context, heads)))


def _as_many(context: AnalysisContext, heads: Rows, later: Rows) -> bool:
    """Check for plausible numbers of first and later fragments; a thin sample splits datagrams."""
    weight = context.traffic.weight
    return float(weight[heads].sum()) > 0.1 * float(weight[later].sum())
