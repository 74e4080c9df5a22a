"""Any rule replayed on the present window: what the operator sees before Enter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fwtop.advise.advisor import make_scene
from fwtop.advise.baseline import Baseline
from fwtop.advise.classify import find_attacks
from fwtop.advise.config import AdviseConfig
from fwtop.advise.contents import signatures
from fwtop.advise.effect import harm_by, share_stopped, stopped_by
from fwtop.advise.normal import normal_traffic, with_unexplained
from fwtop.advise.scene import Finding, Scene
from fwtop.model.percent import percent
from fwtop.model.preview import Preview
from fwtop.model.rule import Kind, Rule
from fwtop.model.window import Window

_BROAD = 0.05


def preview(
    rule: Rule, window: Window, baseline: Baseline | None = None, config: AdviseConfig | None = None
) -> Preview:
    """Return what the rule would stop of the attacks seen now, and what it would hit of normal traffic."""
    config = config or AdviseConfig()
    scene = make_scene(window, config, baseline or Baseline())
    findings = [finding for finding in find_attacks(scene) if not finding.state]
    normal = normal_traffic(scene)
    if normal.guess:
        found = {finding.key: signatures(scene, finding, normal) for finding in findings}
        normal = with_unexplained(scene, normal, found)
    traffic = scene.traffic
    part = stopped_by(rule, scene, traffic)
    if rule.kind in (Kind.NOTRACK, Kind.SYSCTL):
        pps = float((part * traffic.weight).sum()) / traffic.seconds if rule.kind is Kind.NOTRACK else 0.0
        return Preview(0.0, 0.0, 0.0, 0.0, pps, warnings=("it drops nothing",), guess=normal.guess)
    total_pps = float((part * traffic.weight).sum()) / traffic.seconds
    empty = np.zeros(0, np.intp)
    rows = np.sort(np.concatenate([finding.rows for finding in findings])) if findings else empty
    shares = [share_stopped(part, rule.match, traffic, finding, finding.rows) for finding in findings]
    weights = [traffic.share(finding.rows) for finding in findings]
    attack = float(np.average(shares, weights=weights)) if findings else 0.0
    cost = harm_by(rule, normal, traffic)
    warnings = _warnings(scene, rule, total_pps, cost.share, guess=normal.guess)
    return Preview(
        attack_share=attack,
        attack_pps=float((part[rows] * traffic.weight[rows]).sum()) / traffic.seconds,
        collateral_share=cost.share,
        collateral_pps=cost.pps,
        total_pps=total_pps,
        examples=cost.examples,
        warnings=warnings,
        guess=normal.guess,
        attacks=_by_attack(findings, shares),
    )


def _by_attack(findings: Sequence[Finding], shares: Sequence[float]) -> tuple[tuple[str, float], ...]:
    named = zip((finding.title for finding in findings), shares, strict=True)
    return tuple(sorted(named, key=lambda item: -item[1]))


def _warnings(scene: Scene, rule: Rule, total_pps: float, share: float, *, guess: bool) -> tuple[str, ...]:
    found = []
    forged = [f for f in scene.findings if f.spoof.probability > scene.config.spoof_threshold and not f.state]
    if rule.match.sources and forged:
        found.append(
            f"the sources of the {forged[0].title} look forged: blocking them stops little and hits others"
        )
    if not scene.findings:
        found.append("no attack is seen now")
    if total_pps == 0:
        found.append("nothing that arrived in this window matches")
    if share > _BROAD:
        found.append(f"it would hit {percent(share)} of normal traffic")
    if guess:
        found.append("no quiet time was seen before: the harm is a guess")
    return tuple(found)
