"""What harm is counted on: the baseline or, without one, a guess that says that it is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fwtop.advise.effect import Normal
from fwtop.advise.matching import payload_rows
from fwtop.advise.scene import Finding, Scene, plural
from fwtop.advise.signature import Signature
from fwtop.advise.traffic import Rows
from fwtop.model.packets import PacketBatch
from fwtop.model.percent import percent

_KNOWN = 30  # packets that are normal by other signs
_MINORITY = 0.03  # of an attack's packets: more that a signature leaves out is another variant of the attack


def normal_traffic(scene: Scene) -> Normal:
    """Return what harm is counted on: the baseline, else a guess from what the attacks don't explain."""
    baseline, traffic = scene.baseline, scene.traffic
    if baseline.ready:
        rows = baseline.rows
        total = sum(baseline.mean.values())
        weights = float(rows.weight.sum())
        pps = rows.weight * (total / weights if weights else 0.0)
        sentence = (
            f"normal traffic: {len(rows):,} packets sampled over {baseline.seconds:,.0f} quiet seconds "
            f"({total:,.0f} packets a second)"
        )
        return Normal(rows, pps, sentence, guess=False, seconds=baseline.seconds)
    left = (scene.free & ~scene.echo) | scene.acquaintances if scene.findings else scene.free
    rows_left = traffic.rows(left)
    real = float(scene.tcp.real[rows_left].mean()) if len(rows_left) else 0.0
    if len(rows_left) == 0:
        sentence = "no normal traffic was seen: harm can't be counted"
    elif scene.findings:
        sentence = (
            f"no quiet time was seen before the attack: harm is guessed from "
            f"{plural(len(rows_left), 'packet')} that seem not to be the attackers', {percent(real)} of "
            "established connections"
        )
    else:
        sentence = f"learning what is normal: {plural(round(baseline.seconds), 'quiet second')} so far"
    packets = traffic.packets.select(rows_left)
    pps = traffic.weight[rows_left] / traffic.seconds
    return Normal(packets, pps, sentence, guess=True, seconds=traffic.seconds)


def with_unexplained(scene: Scene, normal: Normal, found: Mapping[str, Sequence[Signature]]) -> Normal:
    """Add to a guess what looks like the attack but lacks its signature: who else talks to the same port.

    Returns `normal` itself where there is a baseline, or nobody of that kind; and where nothing else is
    normal, as then these few are rather the attack's own oddities.
    """
    if not normal.guess or len(normal.packets) < _KNOWN:
        return normal
    none = np.zeros(0, np.intp)
    rows = [none, *(_minority(scene, one, found.get(one.key, ())) for one in scene.findings)]
    more = np.unique(np.concatenate(rows))
    more = more[~scene.acquaintances[more]]  # they are in it already
    if len(more) == 0:
        return normal
    traffic = scene.traffic
    packets = PacketBatch.concat([normal.packets, traffic.packets.select(more)])
    pps = np.concatenate([normal.pps, traffic.weight[more] / traffic.seconds])
    beside = f"{plural(len(more), 'packet')} to the same ports without the attack's signature"
    return Normal(packets, pps, f"{normal.sentence}, and from {beside}", guess=True, seconds=normal.seconds)


def _minority(scene: Scene, finding: Finding, found: Sequence[Signature]) -> Rows:
    """Return the finding's rows that have a payload and none of its signatures, if they are few."""
    none = np.zeros(0, np.intp)
    if finding.state or not found:
        return none
    packets = scene.traffic.packets
    loaded = finding.rows[packets.payload_length[finding.rows] > 0]
    explained = np.zeros(len(loaded), np.bool_)
    for one in found:
        explained |= payload_rows(one.match, packets, loaded)
    return none if (~explained).mean() > _MINORITY else loaded[~explained]
