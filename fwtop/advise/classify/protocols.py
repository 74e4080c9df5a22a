"""Floods of GRE, ESP and rarer protocols. Sources: RFC 2784, 4303; Mirai's source (GRE IP and Ethernet)."""

from __future__ import annotations

import numpy as np

from fwtop.advise import sequence
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.traffic import ESP, GRE, ICMP, ICMP6, TCP, UDP, distinct_texts, mix, payload
from fwtop.model.packets import Mask
from fwtop.model.rule import Match

# IGMP, IPv6 header types that are no protocol, EIGRP, OSPF, PIM, VRRP: a network's own housekeeping
_HOUSEKEEPING = (0, 2, 59, 88, 89, 103, 112)
_NEIGHBOURS = 20
_SPIS = 4  # of one peer: one each way, two while keys are renewed
_MANY = 20  # protocols at once: no network has so many


def gre(scene: Scene) -> list[Finding]:
    """GRE of more peers, or faster from one, than tunnels are."""
    return _by_protocol(scene, GRE, "gre_flood", "GRE flood", "gre")


def esp(scene: Scene) -> list[Finding]:
    """ESP with more security associations than peers could have."""
    return _by_protocol(scene, ESP, "esp_flood", "ESP flood", "esp")


def other(scene: Scene) -> list[Finding]:
    """Protocols that a server never sees."""
    packets = scene.traffic.packets
    known = np.isin(packets.protocol, (TCP, UDP, ICMP, ICMP6, GRE, ESP))
    pool = ~known & scene.free & (packets.family != 0) & ~scene.traffic.later
    facts = scene.facts(pool & ~_housekeeping(scene, pool))
    if facts.top("protocol").distinct >= _MANY:  # drawn at random: then those with a rule of their own too
        rest = scene.free & ~np.isin(packets.protocol, (TCP, UDP)) & (packets.family == 4)
        facts = scene.facts(np.asarray(rest & ~scene.traffic.later))
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal="other") or _tunnel(facts):
        return []
    top = facts.top("protocol")
    what = f"IP protocol {top.value}" if top.share > 0.9 else f"{top.distinct} IP protocols"
    evidence = (
        f"{count(facts.packets)} packets of {what} from {facts.senders}, "
        f"{facts.mean_length:.0f} bytes on average",
    )
    match = Match(protocol=top.value if top.share > 0.98 else None)
    spoof = scene.spoof(facts.rows)
    title = f"Flood of {what}"
    return [Finding("ip_protocol_flood", title, facts.rows, sure(0.9, facts.n), evidence, spoof, match)]


def _housekeeping(scene: Scene, pool: Mask) -> Mask:
    """Routers' own traffic: to groups, or of the few neighbours that a link has."""
    packets = scene.traffic.packets
    mask = np.asarray(pool & np.isin(packets.protocol, _HOUSEKEEPING))
    unicast = scene.facts(mask & ~scene.traffic.group)
    if unicast.sources > _NEIGHBOURS:
        mask[unicast.rows] = False
    return mask


def _by_protocol(scene: Scene, protocol: int, kind: str, title: str, normal: str) -> list[Finding]:
    mask: Mask = (scene.traffic.packets.protocol == protocol) & scene.free & ~scene.traffic.later
    facts = scene.facts(mask)
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal=normal) or _tunnel(facts):
        return []
    if protocol == GRE and _same_inside(scene, facts):
        return []
    if protocol == ESP and _associations(scene, facts):
        return []
    matrix, _ = payload(scene.traffic.packets, facts.sample, 8)
    first = np.ascontiguousarray(matrix[:, :4]).view(">u4").reshape(-1)
    evidence = [
        f"{count(facts.packets)} {title.split(maxsplit=1)[0]} packets of {facts.senders}, "
        f"{facts.mean_length:.0f} bytes on average"
    ]
    if protocol == ESP:
        evidence.append(f"{len(np.unique(first)):,} different SPIs in {len(first):,} packets")
    spoof = scene.spoof(facts.rows)
    match = Match(protocol=protocol)
    return [Finding(kind, title, facts.rows, sure(0.93, facts.n), tuple(evidence), spoof, match)]


def _associations(scene: Scene, facts: Facts) -> bool:
    """ESP as peers send it: few SPIs each, and sequence numbers that rise (RFC 4303 2.2)."""
    matrix, _ = payload(scene.traffic.packets, facts.rows, 4)
    spi = np.ascontiguousarray(matrix).view(">u4").reshape(-1).astype(np.uint64)
    pairs = len(np.unique(mix(scene.traffic.source_key[facts.rows], spi)))
    return pairs <= _SPIS * facts.sources and sequence.counts_up(scene.traffic, facts.rows)


def _same_inside(scene: Scene, facts: Facts) -> bool:
    """GRE of a few peers whose inner addresses come again, as those of hosts behind a tunnel do."""
    matrix, held = payload(scene.traffic.packets, facts.sample, 24)
    inner = matrix[(held == 24) & (matrix[:, 2] == 8) & (matrix[:, 3] == 0), 16:24]
    few = facts.sources < 10 and facts.pps_per_source < 20_000 and len(inner) > 0.9 * len(matrix)
    return few and len(np.unique(distinct_texts(inner))) < 0.2 * len(inner)


def _tunnel(facts: Facts) -> bool:
    """A few peers with packets of many sizes at a moderate rate."""
    lengths = facts.top("ip_length")
    return (
        facts.sources < 10 and facts.pps_per_source < 20_000 and lengths.distinct > 10 and lengths.share < 0.8
    )
