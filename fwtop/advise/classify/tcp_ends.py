"""Floods of RST and FIN packets. Source: RFC 9293 3.10.7 (what ends a connection, and what may not)."""

from __future__ import annotations

from fwtop.advise.classify.tcp import constants, stray, tcp_finding
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count
from fwtop.advise.tcpview import FIN, RST, SYN
from fwtop.model.percent import percent


def rst_flood(scene: Scene) -> list[Finding]:
    """RSTs that reset nothing: more than connections could have been there."""
    facts = scene.facts(stray(scene, scene.tcp.rst))
    return _ends(scene, facts, "rst_flood", title="RST flood", normal="tcp.rst", flags=(RST | SYN, RST))


def fin_flood(scene: Scene) -> list[Finding]:
    """FINs that end nothing."""
    facts = scene.facts(stray(scene, scene.tcp.fin))
    return _ends(scene, facts, "fin_flood", title="FIN flood", normal="tcp.fin", flags=(FIN | SYN | RST, FIN))


def _ends(
    scene: Scene, facts: Facts, kind: str, *, title: str, normal: str, flags: tuple[int, int]
) -> list[Finding]:
    config = scene.config
    if not scene.significant(facts, floor_pps=config.flood_pps, normal=normal):
        return []
    tcp, weight = scene.tcp, scene.traffic.weight
    # Connections end about as often as they begin; what a SYN flood or reflection claimed, RSTs included,
    # began none. At a thin sample the ends of real connections are among the rows.
    causes = float(weight[(tcp.syn | tcp.syn_ack) & scene.free].sum())
    if scene.thin:  # there, a connection's other packets tell how many there are
        causes = 2 * causes + float(weight[tcp.ack & scene.free].sum())
    if causes > facts.packets or facts.share < 0.02:
        return []
    if facts.sources < 3 and facts.pps < config.flood_pps:
        return []
    dport = facts.top("dport")
    evidence = [
        f"{count(facts.packets)} {title.split(maxsplit=1)[0]} packets of {facts.senders} and "
        f"{count(causes)} SYNs or SYN-ACKs that could have led to them",
        f"{percent(dport.share)} are for port {dport.value}",
        *constants(facts, ("tcp_window", "tcp_seq", "ip_id", "ttl")),
    ]
    spoof = scene.spoof(facts.rows)
    return [tcp_finding(facts, kind, title, confidence=0.88, evidence=evidence, flags=flags, spoof=spoof)]
