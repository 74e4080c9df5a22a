"""SYN floods, odd flags, and what the rules for TCP share. Sources: RFC 4987 (SYN), RFC 9293."""

from __future__ import annotations

import numpy as np

from fwtop.advise.facts import Facts, header_words
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.spoof import Spoof
from fwtop.advise.tcpview import ACK, SYN, flag_names
from fwtop.advise.traffic import TCP, Rows
from fwtop.model.packets import Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match

_SCANNED_PPS = 100.0  # that a host hears from scanners, at most


def odd_flags(scene: Scene) -> list[Finding]:
    """Flag combinations that no TCP implementation sends: Xmas, null, SYN+FIN and the like."""
    facts = scene.facts(scene.tcp.odd & scene.free)
    config = scene.config
    if not scene.significant(facts, floor_pps=config.reflection_pps, normal="tcp.odd", shaped=True):
        return []
    top = facts.top("tcp_flags")
    name = flag_names(top.value)
    evidence = [f"{count(facts.packets)} TCP packets with impossible flags; {percent(top.share)} have {name}"]
    flags = (63, top.value & 63) if top.share > 0.9 else None
    return [
        tcp_finding(
            facts,
            "tcp_anomaly",
            f"TCP packets with odd flags ({name})",
            confidence=0.95,
            evidence=evidence,
            flags=flags,
            spoof=scene.spoof(facts.rows),
        )
    ]


def syn_flood(scene: Scene) -> list[Finding]:
    """SYNs that are not followed by the rest of a connection."""
    tcp = scene.tcp
    goes_on = scene.traffic.of_flows(tcp.unseen)  # whose flags were cut off: who knows how
    unanswered = tcp.syn & scene.free & ~(tcp.completed | goes_on)
    if not scene.thin:
        unanswered &= scene.strangers
    facts = scene.facts(unanswered)
    config = scene.config
    if not scene.significant(facts, floor_pps=config.flood_pps, normal="tcp.syn"):
        return []
    bare = scene.facts(facts.rows[header_words(scene.traffic, facts.rows) == 5])
    crafted = bare.share > 0.1 * facts.share and scene.significant(
        bare, floor_pps=config.flood_pps, normal="tcp.syn"
    )
    if crafted and bare.share < 0.9 * facts.share and _crowd(scene, facts):
        facts = bare  # crafted ones among those of real clients
    signs = constants(facts, ("tcp_window", "tcp_seq", "ip_id", "sport", "ttl"))
    if not crafted and _crowd(scene, facts):
        return []
    completed = float(tcp.completed[tcp.syn & scene.free].mean())
    # Where connections can be followed, none of these was completed; those that were are other people's
    spoof = scene.spoof(facts.rows, completed=completed if scene.thin else 0.0)
    dport = facts.top("dport")
    if dport.share < 0.5 and _background(scene, facts, spoof):
        return []
    evidence = [
        f"{count(facts.packets)} SYNs of {facts.senders} seen; "
        f"{percent(completed)} of them led to a connection"
    ]
    evidence.append(
        f"{percent(dport.share)} are for port {dport.value}"
        if dport.share > 0.3
        else f"they are spread over {dport.distinct:,} ports"
    )
    if crafted:
        evidence.append("they carry no TCP options, which no operating system's SYN lacks (RFC 9293 3.7.1)")
    load = facts.traffic.packets.payload_length[facts.rows]
    if (load > 0).mean() > 0.5:
        evidence.append(f"they carry data ({load.mean():.0f} bytes on average)")
    confidence = 0.97 if crafted or signs or spoof.probability > 0.8 else 0.85
    resets = _resets(scene, facts)
    if len(resets):
        evidence.append(f"{count(scene.traffic.weight[resets].sum())} RSTs of their sources belong to it")
    return [
        tcp_finding(
            facts,
            "syn_flood",
            "SYN flood",
            confidence=confidence,
            evidence=evidence + signs,
            flags=(SYN | ACK, SYN),
            spoof=spoof,
            rows=np.sort(np.concatenate([facts.rows, resets])),
        )
    ]


def _background(scene: Scene, facts: Facts, spoof: Spoof) -> bool:
    """Tell the scans that every address on the internet gets, and somebody's tries at closed ports.

    An address hears some packets a minute (Wustrow et al., "Internet Background Radiation Revisited", 2010);
    who scans wants the answers, so that forged sources are no part of it.
    """
    pace = facts.packets / max(scene.traffic.seconds, 1.0)
    if facts.sources <= 3 and facts.top("dport").share < 0.1 and pace < scene.config.flood_pps:
        return True
    if scene.traffic.live or spoof.probability > 0.9:
        return False
    return facts.pps < max(20.0, facts.destinations.distinct) or (
        facts.share < 0.5 and facts.pps < _SCANNED_PPS
    )


def stray(scene: Scene, mask: Mask) -> Mask:
    """Take those of no known connection and, where the sample shows that, of nobody who has one."""
    stray = mask & scene.free & ~scene.tcp.real
    return stray if scene.thin else np.asarray(stray & scene.strangers)


def tcp_finding(
    facts: Facts,
    kind: str,
    title: str,
    *,
    confidence: float,
    evidence: list[str],
    flags: tuple[int, int] | None,
    spoof: Spoof,
    rows: Rows | None = None,
) -> Finding:
    """Make a finding of the facts' rows, or of `rows` where more belongs to it."""
    dport, sport = facts.top("dport"), facts.top("sport")
    match = Match(
        protocol=TCP,
        dport=dport.value if dport.share > 0.98 else None,
        sport=sport.value if sport.share > 0.98 and sport.value else None,
        tcp_flags=flags,
    )
    return Finding(
        kind,
        title,
        facts.rows if rows is None else rows,
        sure(confidence, facts.n),
        tuple(evidence),
        spoof,
        match,
    )


def constants(facts: Facts, columns: tuple[str, ...]) -> list[str]:
    """Name the fields where one value dominates although real hosts would differ."""
    names = {
        "tcp_window": "window",
        "tcp_seq": "sequence number",
        "ip_id": "IP id",
        "sport": "source port",
        "ttl": "TTL",
        "ip_length": "IP length",
    }
    if facts.sources < 20:
        return []
    four = facts.top("family").value == 4  # IPv6 has ids in fragments only
    found = facts.constants(columns if four else tuple(name for name in columns if name != "ip_id"), 0.9)
    # A modern Linux sends SYNs with IP id 0 only when it replies; TTL 64 or 128 on a LAN is usual too.
    return [f"{percent(top.share)} have {names[name]} {top.value}" for name, top in found.items()]


def _resets(scene: Scene, facts: Facts) -> Rows:
    """Find the RSTs of hosts that got a SYN-ACK for a SYN they never sent (Moore et al. 2001)."""
    traffic = scene.traffic
    pool = traffic.rows(scene.tcp.rst & scene.free)
    if len(pool) == 0:
        return pool
    mine = pool[traffic.of_flows(facts.rows)[pool]]
    return mine if float(traffic.weight[mine].sum()) < facts.packets else pool[:0]


def _crowd(scene: Scene, facts: Facts) -> bool:
    """A flash crowd: most SYNs become connections; at a thin sample, several packets follow each SYN."""
    tcp, weight = scene.tcp, scene.traffic.weight
    if scene.thin:
        return float(weight[tcp.ack | tcp.fin].sum()) > 1.5 * facts.packets
    return facts.packets < 0.5 * float(weight[tcp.syn].sum())
