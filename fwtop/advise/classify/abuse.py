"""This host as a reflector: requests that are only made to be answered to somebody else.

Sources: CISA TA14-017A; Rossow, "Amplification Hell" (NDSS 2014) 5 (what amplifiers see); Thomas et al.,
"1000 days of UDP amplification DDoS attacks" (eCrime 2017), from honeypots that are such amplifiers.
"""

from __future__ import annotations

import numpy as np

from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.services import BY_PORT, REFLECTED_REQUESTS, SHAPE_WIDTH
from fwtop.advise.spoof import Spoof
from fwtop.advise.traffic import UDP, Rows, flow_key, payload
from fwtop.model.rule import Match

_PER_SOURCE_PPS = 10.0  # of one request: scanners ask once, clients now and then
_FORGED = "who asks so often for what nobody reads has forged the address that gets the answers"


def requests(scene: Scene) -> list[Finding]:
    """Requests of a kind that servers answer many times over, again and again in the same names."""
    packets = scene.traffic.packets
    pool = scene.udp & scene.free & ~scene.solicited
    findings = []
    for name, (port, shape) in REFLECTED_REQUESTS.items():
        rows = scene.traffic.rows(np.asarray(pool & (packets.dport == port) & (packets.sport != port)))
        if len(rows) < scene.config.min_samples:
            continue
        fits = shape(*payload(packets, rows, SHAPE_WIDTH))
        facts = scene.facts(rows[fits])
        big = scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="udp", shaped=True)
        if big and facts.pps_per_source > _PER_SOURCE_PPS and fits.mean() > 0.5:
            findings.append(_finding(scene, name, port, facts))
    return findings


def _finding(scene: Scene, name: str, port: int, facts: Facts) -> Finding:
    title = BY_PORT[port][0].title
    evidence = [
        f"{count(facts.packets)} {title} requests in the names of {facts.senders}, "
        f"{count(facts.pps_per_source)} a second each: this host is used as a reflector",
        *_answers(scene, facts.rows),
    ]
    return Finding(
        f"{name}_amplification",
        f"{title} amplification through this host",
        facts.rows,
        sure(0.85, facts.n),
        tuple(evidence),
        Spoof(0.9, (_FORGED,)),
        Match(protocol=UDP, dport=port),
    )


def _answers(scene: Scene, rows: Rows) -> list[str]:
    """Say how much this host answered, where the capture shows it."""
    traffic = scene.traffic
    keys = np.unique(traffic.flow_key[rows])
    mine = np.isin(flow_key(traffic.outbound, reverse=True), keys) if len(traffic.outbound) else None
    if mine is None or not mine.any():
        return []
    asked = float(traffic.packets.length[rows].sum())
    factor = float(traffic.outbound.length[mine].sum()) / asked
    return [f"it answered with {count(mine.sum())} packets, {factor:.0f} times the bytes"]
