"""What no rule can name, and is a flood all the same."""

from __future__ import annotations

from fwtop.advise import icmp
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count
from fwtop.advise.traffic import TCP, UDP
from fwtop.model.packets import Fragment
from fwtop.model.percent import percent
from fwtop.model.rule import Match

_LEAST = 200  # sampled packets
_SURE = 0.5
_MOST = 0.5  # of what arrives
_NEARLY_ALL = 0.98
_REFUSED = 0.8  # of what arrives: nobody here asked for it
_DECIDED = ("netfilter", "tc", "xdp")  # layers where somebody's rule drops
_NOBODY = ("NO_SOCKET", "IP_NOPROTO")  # dropped because nothing here takes such packets
_COLUMNS = {
    "protocol": "protocol",
    "dport": "to port",
    "sport": "from port",
    "ip_length": "length",
    "ttl": "TTL",
}


def flood(scene: Scene) -> list[Finding]:
    """A surge that no rule explains: named honestly, with what is odd about it."""
    traffic = scene.traffic
    plain = scene.free & ~scene.tcp.real & ~scene.ordinary & ~traffic.group & (traffic.packets.family != 0)
    facts = scene.facts(traffic.rows(plain & ~icmp.neighbours(traffic)))
    if facts.n < _LEAST or scene.scattered(facts):
        return []
    spoof = scene.spoof(facts.rows)
    signs = _surge(scene, facts)
    if traffic.live and not signs:
        return []
    if not traffic.live and (facts.share < 0.8 or spoof.probability < 0.8):
        return []
    evidence = [
        f"{count(facts.packets)} packets that no rule explains from {facts.senders}, "
        f"{facts.mean_length:.0f} bytes on average",
        *signs,
    ]
    for column, name in _COLUMNS.items():
        top = facts.top(column)
        if top.share > 0.8 and (top.value or column == "protocol"):
            evidence.append(f"{percent(top.share)} have {name} {top.value}")
    return [
        Finding("unknown_flood", "Unknown flood", facts.rows, _SURE, tuple(evidence), spoof, _match(facts))
    ]


def _surge(scene: Scene, facts: Facts) -> list[str]:
    """Say why that much is an attack: far more than usual, or nearly all of it refused; else nothing."""
    config, baseline = scene.config, scene.baseline
    flood_pps = 10 * config.flood_pps
    if facts.share < _MOST or facts.pps < flood_pps:
        return []
    usual = [baseline.rate(name) for name in baseline.mean]
    normal = sum(rate for rate in usual if rate is not None)
    if baseline.ready and facts.pps > config.baseline_factor * normal + flood_pps:
        return [f"{count(facts.pps)} a second against {count(normal)} usually"]
    drops = scene.counters.drops
    refused = sum(one.packets for one in drops if one.layer in _DECIDED or one.reason in _NOBODY)
    share = refused / max(1, scene.counters.arrived_packets)
    return [f"{percent(min(share, 1.0))} of what arrives is refused here"] if share > _REFUSED else []


def _match(facts: Facts) -> Match:
    """Return the fields that nearly all of it shares."""
    tops = {column: facts.top(column) for column in ("protocol", "sport", "dport")}
    protocol = tops["protocol"].value if tops["protocol"].share > _NEARLY_ALL else None
    if protocol not in (TCP, UDP) or facts.top("fragment").value == Fragment.LATER:
        return Match(protocol=protocol)
    sport, dport = tops["sport"], tops["dport"]
    return Match(
        protocol=protocol,
        sport=sport.value if sport.share > _NEARLY_ALL else None,
        dport=dport.value if dport.share > _NEARLY_ALL else None,
    )
