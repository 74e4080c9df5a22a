"""Fragments: to which attack they belong, and floods of nothing else. Sources: RFC 791, 1858, 8900."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.traffic import Rows, mix
from fwtop.model.packets import Fragment
from fwtop.model.percent import percent
from fwtop.model.rule import Match

_MOST = 0.9  # of the later fragments: then the rest are of datagrams whose beginning was lost
_MOST_OF_ANSWERS = 0.6  # reflectors answer in fragments, and routers drop some of any datagram
_SERVERS = 10  # storage and video servers that a host has, which send in whole datagrams
_HONEST_BYTES = 500


def attach(scene: Scene) -> None:
    """Count later fragments to the newest finding when its first fragments have the same sources."""
    finding = scene.findings[-1]
    packets, traffic = scene.traffic.packets, scene.traffic
    heads = finding.rows[packets.fragment[finding.rows] == Fragment.FIRST]
    if len(heads) == 0:
        return
    protocol = packets.protocol[heads[0]]
    later = traffic.rows(traffic.later & scene.free & (packets.protocol == protocol))
    if len(later) == 0:
        return
    mine = _same_datagram(scene, heads, later)
    if "amplification" in finding.kind:
        mine |= traffic.of_sources(finding.rows)[later]
    most = _MOST_OF_ANSWERS if "amplification" in finding.kind else _MOST
    if mine.mean() > most or (scene.thin and (mine.mean() > 0.5 or _as_many(scene, heads, later))):
        mine[:] = True  # the rest are the same with a first fragment that was not sampled
    if not mine.any():
        return
    rows = np.sort(np.concatenate([finding.rows, later[mine]]))
    sentence = f"{count(traffic.weight[later[mine]].sum())} later fragments of the same sources belong to it"
    scene.findings[-1] = replace(finding, rows=rows, evidence=(*finding.evidence, sentence))
    scene.free[later[mine]] = False


def flood(scene: Scene) -> list[Finding]:
    """Fragments of datagrams whose beginning never comes, or that are too small to be honest."""
    packets = scene.traffic.packets
    facts = scene.facts((packets.fragment != Fragment.NONE) & scene.free & (packets.family != 0))
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal="fragment"):
        return []
    later = float((packets.fragment[facts.rows] == Fragment.LATER).mean())
    datagrams = len(np.unique(_datagrams(scene, facts.rows)))
    if _whole(scene, facts, datagrams):
        return []
    evidence = (
        f"{count(facts.packets)} fragments of {facts.senders}, {percent(later)} of them later ones",
        f"{facts.n / max(datagrams, 1):.1f} seen of each datagram, {facts.mean_length:.0f} bytes on average",
    )
    protocol = facts.top("protocol")
    match = Match(protocol=protocol.value if protocol.share > 0.98 else None, fragment=True)
    spoof = scene.spoof(facts.rows)
    return [
        Finding("fragment_flood", "Fragment flood", facts.rows, sure(0.88, facts.n), evidence, spoof, match)
    ]


def _whole(scene: Scene, facts: Facts, datagrams: int) -> bool:
    """Large datagrams of a few servers, each with its beginning: NFS, video or a DNS transfer."""
    packets = scene.traffic.packets
    heads = int((packets.fragment[facts.rows] == Fragment.FIRST).sum())
    return facts.sources < _SERVERS and heads > 0.8 * datagrams and facts.mean_length > _HONEST_BYTES


def _datagrams(scene: Scene, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    traffic = scene.traffic
    return mix(
        traffic.source_key[rows] ^ traffic.dest_key[rows], traffic.packets.ip_id[rows].astype(np.uint64)
    )


def _same_datagram(scene: Scene, heads: Rows, later: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(_datagrams(scene, later), np.unique(_datagrams(scene, heads)))


def _as_many(scene: Scene, heads: Rows, later: Rows) -> bool:
    """At a thin sample the parts of one datagram aren't seen together, but their numbers still fit."""
    weight = scene.traffic.weight
    return float(weight[heads].sum()) > 0.1 * float(weight[later].sum())
