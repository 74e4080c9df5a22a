"""Floods of ICMP. Sources: RFC 792, 4443; CERT CA-1998-01 (Smurf); TDC, "BlackNurse" (2016)."""

from __future__ import annotations

from fwtop.advise import icmp
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.traffic import ICMP, ICMP6
from fwtop.model.percent import percent
from fwtop.model.rule import Match

_NAMES = {
    0: "echo reply",
    3: "destination unreachable",
    8: "echo request",
    11: "time exceeded",
    13: "timestamp",
}
_PINGED_PPS = 200.0  # by a few hosts that watch whether this one lives
_NAMES6 = {1: "destination unreachable", 3: "time exceeded", 128: "echo request", 129: "echo reply"}


def flood(scene: Scene) -> list[Finding]:
    """Echo requests or replies beyond what people ping; errors only when they are the traffic itself.

    Errors beside another attack are its echo (backscatter), not a further one.
    """
    packets = scene.traffic.packets
    family = (packets.protocol == ICMP) | ((packets.protocol == ICMP6) & ~icmp.neighbours(scene.traffic))
    pool = family & scene.free & (packets.family != 0)
    errors = icmp.errors(scene.traffic)
    plain = scene.facts(pool & ~errors)
    every = scene.facts(pool)
    others = sum(scene.traffic.share(finding.rows) for finding in scene.findings)
    weapon = every.share > 0.5 or every.pps_per_source > 50
    facts = every if weapon and others < 0.1 else plain
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal="icmp"):
        return []
    if facts.sources < 20 and min(facts.peak_pps, facts.packets) < _PINGED_PPS:
        return []  # somebody pings
    top, protocol = facts.top("icmp_type"), facts.top("protocol")
    names = _NAMES if protocol.value == ICMP else _NAMES6
    name = names.get(top.value, f"type {top.value}")
    title = "ICMP flood"
    if name == "echo reply" and top.share > 0.8 and facts.sources >= 8:
        title = "ICMP echo-reply reflection"
    evidence = (
        f"{count(facts.packets)} ICMP packets of {facts.senders}, {percent(top.share)} of type {name}",
        f"{facts.mean_length:.0f} bytes on average",
    )
    match = Match(
        protocol=protocol.value if protocol.share > 0.98 else None,
        icmp_type=top.value if top.share > 0.95 else None,
        family=4 if protocol.value == ICMP else 6,
    )
    spoof = scene.spoof(facts.rows, prior=-3.0 if name == "echo reply" else 0.0)
    return [Finding("icmp_flood", title, facts.rows, sure(0.93, facts.n), evidence, spoof, match)]
