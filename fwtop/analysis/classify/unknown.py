"""Floods that no other rule explains."""

from __future__ import annotations

from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.parsers import icmp
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import TCP, UDP
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Fragment
from fwtop.render.numbers import percent

_LEAST = 200  # sampled packets
_SURE = 0.5
_MOST = 0.5  # of the arriving packets
_NEARLY_ALL = 0.98
_REFUSED = 0.8  # of the arriving packets
_DECIDED = ("netfilter", "tc", "xdp")  # layers where rules drop
_NOBODY = ("NO_SOCKET", "IP_NOPROTO")  # dropped because no socket or protocol accepts such packets
_COLUMNS = {
    "protocol": "protocol",
    "dport": "to port",
    "sport": "from port",
    "ip_length": "length",
    "ttl": "TTL",
}


def flood(context: AnalysisContext) -> list[Finding]:
    """Find a surge that no rule explains, and describe what is unusual about it."""
    traffic = context.traffic
    plain = (
        context.unclaimed
        & ~context.tcp.real
        & ~context.benign
        & ~traffic.group
        & (traffic.packets.family != 0)
    )
    features = context.features(traffic.rows(plain & ~icmp.neighbours(traffic)))
    if features.n < _LEAST or context.scattered(features):
        return []
    spoof = context.spoof(features.rows)
    signs = _surge(context, features)
    if traffic.live and not signs:
        return []
    if not traffic.live and (features.share < 0.8 or spoof.probability < 0.8):
        return []
    evidence = [
        f"{features.amount('packets of no known kind')} from {features.senders}, "
        f"mean length {features.mean_length:.0f} bytes",
        *signs,
    ]
    for column, name in _COLUMNS.items():
        top = features.top(column)
        if top.share > 0.8 and (top.value or column == "protocol"):
            evidence.append(f"{percent(top.share)} have {name} {top.value}")
    return [
        Finding(
            "unknown_flood", "Unknown flood", features.rows, _SURE, tuple(evidence), spoof, _match(features)
        )
    ]


def _surge(context: AnalysisContext, features: Features) -> list[str]:
    """Say why the surge is an attack: far above the baseline, or nearly all rejected; else empty."""
    config, baseline = context.config, context.baseline
    flood_pps = 10 * config.flood_pps
    if features.share < _MOST or features.pps < flood_pps:
        return []
    usual = [baseline.rate(name) for name in baseline.mean]
    normal = sum(rate for rate in usual if rate is not None)
    if baseline.ready and features.pps > config.baseline_factor * normal + flood_pps:
        return [f"{count(features.pps)} packets/s, normally up to {count(normal)}"]
    drops = context.counters.drops
    refused = sum(one.packets for one in drops if one.layer in _DECIDED or one.reason in _NOBODY)
    share = refused / max(1, context.counters.arrived_packets)
    return (
        [f"{percent(min(share, 1.0))} of the arriving packets are rejected by this host"]
        if share > _REFUSED
        else []
    )


def _match(features: Features) -> Match:
    """Return the fields that nearly all its packets share."""
    tops = {column: features.top(column) for column in ("protocol", "sport", "dport")}
    protocol = tops["protocol"].value if tops["protocol"].share > _NEARLY_ALL else None
    if protocol not in (TCP, UDP) or features.top("fragment").value == Fragment.LATER:
        return Match(protocol=protocol)
    sport, dport = tops["sport"], tops["dport"]
    return Match(
        protocol=protocol,
        sport=sport.value if sport.share > _NEARLY_ALL else None,
        dport=dport.value if dport.share > _NEARLY_ALL else None,
    )
