"""Floods of TCP packets by their flags. Sources: RFC 4987 (SYN), RFC 9293, Bock et al. 2021 (reflection)."""

from __future__ import annotations

import math

import numpy as np

from fwtop.advise.facts import Facts, header_words
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.spoof import Spoof
from fwtop.advise.tcpview import ACK, FIN, RST, SYN, flag_names
from fwtop.advise.traffic import TCP
from fwtop.model.packets import Mask
from fwtop.model.rule import Match


def odd_flags(scene: Scene) -> list[Finding]:
    """Flag combinations that no TCP implementation sends: Xmas, null, SYN+FIN and the like."""
    facts = scene.facts(scene.tcp.odd & scene.free)
    config = scene.config
    if not scene.significant(facts, floor_pps=config.reflection_pps, normal="tcp.odd", shaped=True):
        return []
    top = facts.top("tcp_flags")
    name = flag_names(top.value)
    evidence = [f"{count(facts.packets)} TCP packets with impossible flags; {top.share:.0%} have {name}"]
    flags = (63, top.value & 63) if top.share > 0.9 else None
    return [
        _finding(
            facts,
            "tcp_anomaly",
            f"TCP packets with odd flags ({name})",
            confidence=0.95,
            evidence=evidence,
            flags=flags,
            spoof=scene.spoof(facts.rows),
        )
    ]


def syn_ack_reflection(scene: Scene) -> list[Finding]:
    """SYN-ACKs that answer SYNs sent by somebody else in this host's name, from many servers."""
    rows = scene.tcp.syn_ack & scene.free & ~_answered(scene)
    facts = scene.facts(rows)
    config = scene.config
    if not scene.significant(facts, floor_pps=config.reflection_pps, normal="tcp.syn_ack"):
        return []
    if facts.sources < 8:
        return []  # backscatter: a few hosts are flooded with forged sources, among them this one's
    if _goes_on(scene, facts):
        return []  # a client: its connections go on
    sport, spoof = facts.top("sport"), scene.spoof(facts.rows, prior=-2.5)
    resets = scene.facts(scene.tcp.rst & scene.free)
    evidence = [
        f"{count(facts.packets)} SYN-ACKs of {facts.sources:,} servers, for connections nobody here opened",
        f"{sport.share:.0%} come from port {sport.value}, to {facts.top('dport').distinct:,} ports here",
    ]
    if 0 < resets.packets < facts.packets:
        evidence.append(f"{count(resets.packets)} RSTs beside them are answers of the same kind")
    return [
        _finding(
            facts,
            "syn_ack_reflection",
            "SYN-ACK reflection",
            confidence=0.95,
            evidence=evidence,
            flags=(SYN | ACK, SYN | ACK),
            spoof=spoof,
        )
    ]


def syn_flood(scene: Scene) -> list[Finding]:
    """SYNs that are not followed by the rest of a connection."""
    tcp = scene.tcp
    unanswered = tcp.syn & scene.free & ~tcp.completed
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
    signs = _constants(facts, ("tcp_window", "tcp_seq", "ip_id", "sport", "ttl"))
    if not crafted and _crowd(scene, facts):
        return []
    completed = float(tcp.completed[tcp.syn & scene.free].mean())
    spoof = scene.spoof(facts.rows, completed=completed)
    dport = facts.top("dport")
    background = facts.pps < 20 or (facts.share < 0.5 and spoof.probability < 0.7)
    if dport.share < 0.5 and background and not scene.traffic.live:
        return []  # the scans that every address on the internet gets
    evidence = [
        f"{count(facts.packets)} SYNs of {facts.sources:,} sources seen; "
        f"{completed:.0%} of them led to a connection"
    ]
    evidence.append(
        f"{dport.share:.0%} are for port {dport.value}"
        if dport.share > 0.3
        else f"they are spread over {dport.distinct:,} ports"
    )
    if crafted:
        evidence.append("they carry no TCP options, which no operating system's SYN lacks (RFC 9293 3.7.1)")
    load = facts.traffic.packets.payload_length[facts.rows]
    if (load > 0).mean() > 0.5:
        evidence.append(f"they carry data ({load.mean():.0f} bytes on average)")
    confidence = 0.97 if crafted or signs or spoof.probability > 0.8 else 0.85
    return [
        _finding(
            facts,
            "syn_flood",
            "SYN flood",
            confidence=confidence,
            evidence=evidence + signs,
            flags=(SYN | ACK, SYN),
            spoof=spoof,
        )
    ]


def ack_flood(scene: Scene) -> list[Finding]:
    """ACK or PSH-ACK packets that belong to no connection."""
    tcp = scene.tcp
    facts = scene.facts(_stray(scene, tcp.ack))
    config = scene.config
    if not scene.significant(facts, floor_pps=config.flood_pps, normal="tcp.ack"):
        return []
    # Where a SYN flood has claimed the SYNs of real clients too, FINs tell how many those are
    weight, mine = scene.traffic.weight, scene.free | tcp.real
    ends = float(weight[tcp.fin & mine].sum())
    openings = max(2 * ends, ends + float(weight[(tcp.syn | tcp.syn_ack) & mine].sum()))
    spoof = scene.spoof(facts.rows)
    signs = _constants(facts, ("tcp_window", "tcp_seq", "ip_id", "ttl")) + _one_size(scene, facts)
    lonely = facts.flow_singles > 0.5 and _unopened(scene, facts, openings)
    replayed = facts.flow_singles <= 0.5
    backed = bool(signs) or spoof.probability > 0.5 or not scene.traffic.live or scene.baseline.ready
    if not ((lonely and backed) or replayed or spoof.probability > 0.8):
        return []
    dport = facts.top("dport")
    data = float((facts.traffic.packets.payload_length[facts.rows] > 0).mean())
    evidence = [
        f"{count(facts.packets)} ACK packets of {facts.sources:,} sources belong to no connection: "
        f"{facts.flow_singles:.0%} are the only one of theirs"
        if lonely
        else f"{count(facts.packets)} ACK packets whose numbers don't advance as a connection's do",
        f"{data:.0%} carry data; {dport.share:.0%} are for port {dport.value}",
    ]
    evidence += signs
    title = "PSH-ACK flood" if data > 0.5 else "ACK flood"
    confidence = 0.92 if spoof.probability > 0.8 or replayed else 0.8
    return [
        _finding(
            facts,
            "ack_flood",
            title,
            confidence=confidence,
            evidence=evidence,
            flags=(SYN | RST | FIN | ACK, ACK),
            spoof=spoof,
        )
    ]


def rst_flood(scene: Scene) -> list[Finding]:
    """RSTs that reset nothing: more than connections could have been there."""
    facts = scene.facts(_stray(scene, scene.tcp.rst))
    return _ends(scene, facts, "rst_flood", title="RST flood", normal="tcp.rst", flags=(RST | SYN, RST))


def fin_flood(scene: Scene) -> list[Finding]:
    """FINs that end nothing."""
    facts = scene.facts(_stray(scene, scene.tcp.fin))
    return _ends(scene, facts, "fin_flood", title="FIN flood", normal="tcp.fin", flags=(FIN | SYN | RST, FIN))


def _one_size(scene: Scene, facts: Facts) -> list[str]:
    """Say so when data comes in packets of one odd size: requests differ, and uploads are full-sized."""
    packets = scene.traffic.packets
    data = scene.facts(facts.rows[packets.payload_length[facts.rows] > 0])
    length = data.top("ip_length")
    if data.n < 50 or data.share < 0.3 * facts.share or length.share < 0.8 or length.value >= 1_300:
        return []
    return [f"{length.share:.0%} of those with data have IP length {length.value}"]


def _unopened(scene: Scene, facts: Facts, openings: float) -> bool:
    """Tell whether fewer connections were opened than those single packets would need.

    When one in N is sampled and a part s of the packets is alone in its flow, flows have about
    -ln(s) N packets (Poisson), of which one opens and one closes the connection.
    """
    length = max(2.0, -math.log(min(0.999, facts.flow_singles)) * facts.traffic.one_in)
    expected = min(0.1, 0.75 / length) if not scene.thin else 0.75 / length
    return openings < expected * facts.packets


def _stray(scene: Scene, mask: Mask) -> Mask:
    """Take those of no known connection and, where the sample shows that, of nobody who has one."""
    stray = mask & scene.free & ~scene.tcp.real
    return stray if scene.thin else np.asarray(stray & scene.strangers)


def _ends(
    scene: Scene, facts: Facts, kind: str, *, title: str, normal: str, flags: tuple[int, int]
) -> list[Finding]:
    config = scene.config
    if not scene.significant(facts, floor_pps=config.flood_pps, normal=normal):
        return []
    tcp, weight = scene.tcp, scene.traffic.weight
    # Connections end about as often as they begin, and reflected SYN-ACKs bring RSTs with them. At a thin
    # sample the ends of real connections are among the rows.
    causes = float(weight[(tcp.syn & scene.free) | tcp.syn_ack].sum())
    if scene.thin:  # there, a connection's other packets tell how many there are
        causes = 2 * causes + float(weight[tcp.ack & scene.free].sum())
    if causes > facts.packets or facts.share < 0.02:
        return []
    spoof = scene.spoof(facts.rows)
    if facts.sources < 3 and facts.pps < config.flood_pps:
        return []
    dport = facts.top("dport")
    evidence = [
        f"{count(facts.packets)} {title.split(maxsplit=1)[0]} packets of {facts.sources:,} sources and "
        f"{count(causes)} SYNs or SYN-ACKs that could have led to them",
        f"{dport.share:.0%} are for port {dport.value}",
    ]
    evidence += _constants(facts, ("tcp_window", "tcp_seq", "ip_id", "ttl"))
    return [
        _finding(
            facts,
            kind,
            title,
            confidence=0.88,
            evidence=evidence,
            flags=flags,
            spoof=spoof,
        )
    ]


def _finding(
    facts: Facts,
    kind: str,
    title: str,
    *,
    confidence: float,
    evidence: list[str],
    flags: tuple[int, int] | None,
    spoof: Spoof,
) -> Finding:
    dport, sport = facts.top("dport"), facts.top("sport")
    match = Match(
        protocol=TCP,
        dport=dport.value if dport.share > 0.98 else None,
        sport=sport.value if sport.share > 0.98 and sport.value else None,
        tcp_flags=flags,
    )
    return Finding(kind, title, facts.rows, sure(confidence, facts.n), tuple(evidence), spoof, match)


def _constants(facts: Facts, columns: tuple[str, ...]) -> list[str]:
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
    found = facts.constants(columns, 0.9)
    # A modern Linux sends SYNs with IP id 0 only when it replies; TTL 64 or 128 on a LAN is usual too.
    return [f"{top.share:.0%} have {names[name]} {top.value}" for name, top in found.items()]


def _answered(scene: Scene) -> Mask:
    """SYN-ACKs of connections that this host was seen to open, or that went on."""
    return scene.tcp.real | scene.solicited


def _crowd(scene: Scene, facts: Facts) -> bool:
    """A flash crowd: most SYNs become connections; at a thin sample, several packets follow each SYN."""
    tcp, weight = scene.tcp, scene.traffic.weight
    if scene.thin:
        return float(weight[tcp.ack | tcp.fin].sum()) > 1.5 * facts.packets
    return facts.packets < 0.5 * float(weight[tcp.syn].sum())


def _goes_on(scene: Scene, facts: Facts) -> bool:
    """Answers to this host's own connections: the servers send more than their SYN-ACK."""
    tcp, traffic = scene.tcp, scene.traffic
    more = (tcp.ack | tcp.fin) & ~tcp.syn_ack
    if scene.thin:
        same_port = np.isin(traffic.packets.sport, [facts.top("sport").value])
        return float(traffic.weight[more & same_port].sum()) > 1.5 * facts.packets
    talking = np.unique(traffic.source_key[more])
    return float(np.isin(traffic.source_key[facts.rows], talking).mean()) > 0.5
