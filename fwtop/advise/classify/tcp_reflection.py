"""TCP answers to SYNs that others sent in this host's name: SYN-ACKs, resets, and censors' block pages.

Sources: Kührer et al., "Hell of a Handshake" (WOOT 2014), for SYN-ACKs, RSTs and retransmissions of
reflectors; Bock et al., "Weaponizing Middleboxes for TCP Reflected Amplification" (USENIX Security 2021).
"""

from __future__ import annotations

import numpy as np

from fwtop.advise.classify.tcp import tcp_finding
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, plural, sure
from fwtop.advise.tcpview import ACK, SYN
from fwtop.advise.traffic import TCP, Rows, payload, weighted_top
from fwtop.model.packets import Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match
from fwtop.model.text import payload_text

_PORTS = 32  # source ports that reflectors use at once
_PORT_SHARE = 0.01
_PRIVILEGED = 1024
_SERVERS = 8  # fewer: backscatter, or a page that somebody here reads
_PAGE = np.frombuffer(b"HTTP/1.", np.uint8)
_NEXT = 1 << 20  # bytes from one answer to the next on a connection
_SERVICE_PRIOR = -6.0  # log-odds of forged sources where answers come from a few services' ports


def syn_ack(scene: Scene) -> list[Finding]:
    """SYN-ACKs of many servers for connections nobody here opened, with all that the same SYNs brought.

    Its share counts the TCP packets: SYN-ACKs with their retransmissions, the RSTs of closed ports, and
    SYNs of the same servers (RFC 9293 3.5, simultaneous open). ICMP errors beside are told as its echo.
    """
    tcp, config = scene.tcp, scene.config
    facts = scene.facts(tcp.syn_ack & scene.free & ~(tcp.real | scene.solicited))
    if not scene.significant(facts, floor_pps=config.reflection_pps, normal="tcp.syn_ack"):
        return []
    if facts.sources < _SERVERS:
        return []  # backscatter: a few hosts are flooded with forged sources, among them this one's
    if _goes_on(scene, facts):
        return []  # a client: its connections go on
    ports = _ports(scene, facts.rows)
    few_ports = float(np.isin(scene.traffic.packets.sport[facts.rows], ports[:8]).mean()) > 0.8
    spoof = scene.spoof(facts.rows, prior=_SERVICE_PRIOR if few_ports else -2.5)
    every = scene.facts(np.sort(np.concatenate([facts.rows, *_beside(scene, facts, ports)])))
    sport = facts.top("sport")
    evidence = [
        f"{count(facts.packets)} SYN-ACKs of {plural(facts.sources, 'server')}, "
        "for connections nobody here opened",
        f"{percent(sport.share)} come from port {sport.value}, to {facts.top('dport').distinct:,} ports here",
    ]
    if every.n > facts.n:
        more = count(every.packets - facts.packets)
        evidence.append(f"{more} RSTs and SYNs from the same ports answer the same forged SYNs")
    finding = tcp_finding(
        facts,
        "syn_ack_reflection",
        "SYN-ACK reflection",
        confidence=0.95,
        evidence=evidence,
        flags=(SYN | ACK, SYN | ACK),
        spoof=spoof,
        rows=every.rows,
    )
    return [finding]


def middlebox(scene: Scene) -> list[Finding]:
    """Block pages and resets of middleboxes that answer requests without any handshake."""
    tcp, traffic, config = scene.tcp, scene.traffic, scene.config
    packets = traffic.packets
    loaded = (tcp.ack | tcp.fin) & scene.free & (packets.payload_length > 0) & ~scene.solicited
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
    of_boxes, boxes = traffic.of_sources(pages), scene.facts(pages).sources
    theirs = of_boxes[data]
    if boxes < _SERVERS or is_page.sum() < 0.5 * theirs.sum() or not _unasked(scene, pages):
        return []
    ports = _ports(scene, pages)
    mine = (of_boxes | (tcp.rst & ~tcp.real)) & np.isin(packets.sport, ports)
    facts = scene.facts(np.asarray(mine & tcp.tcp & scene.free & ~tcp.syn & ~tcp.syn_ack))
    if not scene.significant(facts, floor_pps=config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    return [_boxes(scene, facts, pages, boxes)]


def _boxes(scene: Scene, facts: Facts, pages: Rows, boxes: int) -> Finding:
    packets = scene.traffic.packets
    first, length = payload(packets, pages[:1], 40)
    line = first[0, : int(length[0])].tobytes().split(b"\r\n")[0]
    evidence = (
        f"{count(scene.traffic.weight[pages].sum())} web pages of {plural(boxes, 'source')} for requests "
        f"nobody here sent: none did a handshake; the first begins {payload_text(line, limit=40)!r}",
        f"with their resets and other packets {count(facts.packets)}, {facts.mean_length:.0f} bytes on "
        "average; middleboxes that censor answer so (Bock et al. 2021)",
    )
    sport = facts.top("sport")
    match = Match(protocol=TCP, sport=sport.value if sport.share > 0.98 else None)
    spoof = scene.spoof(facts.rows, prior=_SERVICE_PRIOR)
    title = "TCP middlebox reflection"
    return Finding(
        "middlebox_amplification", title, facts.rows, sure(0.9, len(pages)), evidence, spoof, match
    )


def _unasked(scene: Scene, pages: Rows) -> bool:
    """Tell whether pages don't follow each other on connections, as the answers that somebody reads do."""
    traffic = scene.traffic
    order = np.lexsort((traffic.packets.time_ns[pages], traffic.flow_key[pages]))
    flow, number = traffic.flow_key[pages][order], traffic.packets.tcp_seq[pages][order]
    step = (number[1:] - number[:-1]).view(np.int32)
    follows = (flow[1:] == flow[:-1]) & (step > 0) & (step < _NEXT)
    return int(follows.sum()) < 0.3 * len(pages)


def _ports(scene: Scene, rows: Rows) -> list[int]:
    """Return the source ports that matter among the rows."""
    ports, weights = weighted_top(scene.traffic.packets.sport[rows], scene.traffic.weight[rows])
    return [int(port) for port in ports[:_PORTS][weights[:_PORTS] > _PORT_SHARE * weights.sum()]]


def _beside(scene: Scene, facts: Facts, ports: list[int]) -> list[Rows]:
    """Find the RSTs and SYNs from the reflectors' ports: real clients use neither of these as theirs."""
    tcp, traffic = scene.tcp, scene.traffic
    stray: Mask = scene.free & ~tcp.real & ~scene.solicited
    same_port = np.isin(traffic.packets.sport, ports)
    reflectors = traffic.of_sources(facts.rows)
    resets = tcp.rst & (same_port | reflectors)
    openings = tcp.syn & same_port & (reflectors | (traffic.packets.sport < _PRIVILEGED))
    return [traffic.rows(np.asarray(stray & (resets | openings)))]


def _goes_on(scene: Scene, facts: Facts) -> bool:
    """Answers to this host's own connections: the servers send more than their SYN-ACK."""
    tcp, traffic = scene.tcp, scene.traffic
    more = (tcp.ack | tcp.fin) & ~tcp.syn_ack
    if scene.thin:
        same_port = np.isin(traffic.packets.sport, [facts.top("sport").value])
        return float(traffic.weight[more & same_port].sum()) > 1.5 * facts.packets
    return float(traffic.of_sources(more)[facts.rows].mean()) > 0.5
