"""Floods of ACK packets, outside of connections and, as STOMP sends them, within.

Sources: RFC 9293 3.10.7; Mirai's source (attack_tcp_ack, attack_tcp_stomp); Imperva, "Breaking down Mirai"
(2016).
"""

from __future__ import annotations

import math

import numpy as np

from fwtop.advise.classify.tcp import constants, stray, tcp_finding
from fwtop.advise.facts import Facts, header_words
from fwtop.advise.http import request_mask
from fwtop.advise.scene import Finding, Scene, count
from fwtop.advise.tcpview import ACK, FIN, RST, SYN, ack_numbers
from fwtop.advise.tls import record_mask
from fwtop.advise.traffic import Rows
from fwtop.model.percent import percent

_BARE = 5  # words of a TCP header without options
_ALONE = 0.9  # of a capture's packets: where it cuts connections off, fewer are the only ones seen
_FULL = 1_300  # bytes of an IP packet: full-sized ones are uploads
_TIRELESS = 10  # packets of data on one connection without a word of the server
_FLOWS = 5
_FLAGS = (SYN | RST | FIN | ACK, ACK)


def ack_flood(scene: Scene) -> list[Finding]:
    """ACK or PSH-ACK packets that belong to no connection."""
    tcp, config = scene.tcp, scene.config
    facts = scene.facts(stray(scene, tcp.ack))
    if scene.sampled:  # in a sampled capture all are alone; tools' packets lack options besides
        facts = scene.facts(facts.rows[header_words(scene.traffic, facts.rows) == _BARE])
    if not scene.significant(facts, floor_pps=config.flood_pps, normal="tcp.ack"):
        return []
    # Where a SYN flood has claimed the SYNs of real clients too, FINs tell how many those are
    weight, mine = scene.traffic.weight, scene.free | tcp.real
    if not scene.thin:  # connections of other sources explain none of these
        mine = mine & scene.traffic.of_sources(facts.rows)
    ends = float(weight[tcp.fin & mine].sum())
    openings = max(2 * ends, ends + float(weight[(tcp.syn | tcp.syn_ack) & mine].sum()))
    spoof = scene.spoof(facts.rows)
    signs = constants(facts, ("tcp_window", "tcp_seq", "ip_id", "ttl")) + _one_size(scene, facts)
    lonely = facts.flow_singles > 0.5 and _unopened(scene, facts, openings)
    replayed = facts.flow_singles <= 0.5
    alone = not scene.traffic.live and facts.flow_singles > _ALONE
    backed = bool(signs) or spoof.probability > 0.5 or alone or scene.baseline.ready
    if scene.sampled and not (signs or spoof.probability > 0.8):
        return []
    if not ((lonely and backed) or replayed or spoof.probability > 0.8):
        return []
    dport = facts.top("dport")
    data = float((facts.traffic.packets.payload_length[facts.rows] > 0).mean())
    evidence = [
        f"{count(facts.packets)} ACK packets of {facts.senders} belong to no connection: "
        f"{percent(facts.flow_singles)} are the only one of theirs"
        if lonely
        else f"{count(facts.packets)} ACK packets whose numbers don't advance as a connection's do",
        f"{percent(data)} carry data; {percent(dport.share)} are for port {dport.value}",
        *signs,
    ]
    title = "PSH-ACK flood" if data > 0.5 else "ACK flood"
    confidence = 0.92 if spoof.probability > 0.8 or replayed else 0.8
    return [
        tcp_finding(
            facts, "ack_flood", title, confidence=confidence, evidence=evidence, flags=_FLAGS, spoof=spoof
        )
    ]


def stomp(scene: Scene) -> list[Finding]:
    """Junk on connections that were opened properly: data of one size, again and again, to no answer."""
    traffic, tcp = scene.traffic, scene.tcp
    packets = traffic.packets
    if scene.thin:
        return []
    rows = traffic.rows(tcp.ack & tcp.real & scene.free & (packets.payload_length > 0))
    rows = rows[packets.ip_length[rows] < _FULL]
    if len(rows) < scene.config.min_samples:
        return []
    inverse = traffic.flow_id[rows]
    counts = np.bincount(inverse)
    if (counts >= _TIRELESS).sum() < _FLOWS:
        return []
    odd = (counts >= _TIRELESS) & _constant(packets.payload_length[rows], inverse, len(counts))
    odd &= _constant(ack_numbers(traffic, rows), inverse, len(counts))
    junk = rows[odd[inverse]]
    junk = junk[~request_mask(traffic, junk) & ~record_mask(traffic, junk)]
    flows = len(np.unique(inverse[odd[inverse]]))
    if flows < _FLOWS:
        return []
    every = traffic.rows(tcp.tcp & scene.free & traffic.of_flows(junk))
    facts, data = scene.facts(every), scene.facts(junk)
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal="tcp.ack"):
        return []
    size = data.top("payload_length")
    evidence = [
        f"{count(data.packets)} packets of data on {flows:,} connections of "
        f"{facts.senders}, none of which acknowledges anything that this host said",
        f"{percent(size.share)} carry {size.value} bytes; they are neither TLS nor HTTP requests",
    ]
    spoof = scene.spoof(facts.rows, completed=1.0)
    title = "PSH-ACK flood on open connections (STOMP)"
    return [
        tcp_finding(facts, "ack_flood", title, confidence=0.85, evidence=evidence, flags=_FLAGS, spoof=spoof)
    ]


def _constant(values: np.ndarray[tuple[int], np.dtype[np.generic]], group: Rows, groups: int) -> np.ndarray:
    """Tell the groups in which all values are the same."""
    low = np.full(groups, np.iinfo(np.int64).max)
    high = np.full(groups, -1, np.int64)
    np.minimum.at(low, group, values.astype(np.int64))
    np.maximum.at(high, group, values.astype(np.int64))
    return np.asarray(low == high)


def _one_size(scene: Scene, facts: Facts) -> list[str]:
    """Say so when data comes in packets of one odd size: requests differ, and uploads are full-sized."""
    packets = scene.traffic.packets
    data = scene.facts(facts.rows[packets.payload_length[facts.rows] > 0])
    length = data.top("ip_length")
    if data.n < 50 or data.share < 0.3 * facts.share or length.share < 0.8 or length.value >= _FULL:
        return []
    return [f"{percent(length.share)} of those with data have IP length {length.value}"]


def _unopened(scene: Scene, facts: Facts, openings: float) -> bool:
    """Tell whether fewer connections were opened than those single packets would need.

    When one in N is sampled and a part s of the packets is alone in its flow, flows have about
    -ln(s) N packets (Poisson), of which one opens and one closes the connection.
    """
    length = max(2.0, -math.log(min(0.999, facts.flow_singles)) * facts.traffic.one_in)
    expected = min(0.1, 0.75 / length) if not scene.thin else 0.75 / length
    return openings < expected * facts.packets
