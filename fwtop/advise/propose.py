"""What to do about an attack: every mitigation that fits, with its measured effect, best first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.advise.candidates import USEFUL, Candidate, candidates
from fwtop.advise.commands import fwtop_line, shell_commands
from fwtop.advise.effect import Normal, harm, share_of, stopped
from fwtop.advise.scene import Finding, Scene
from fwtop.advise.upstream import upstream
from fwtop.model.rule import Kind, Rule
from fwtop.model.snapshot import Proposal

_PER_ATTACK = 5
_TOLERABLE = 0.1  # of normal traffic: when every rule hits more, the provider may know better
_LASTS = {
    Kind.IPSET: "lasts while these sources are used",
    Kind.HASHLIMIT: "lasts as long as sources are few enough to be fast",
    Kind.STRING: "lasts until the tool changes its payload",
    Kind.XDP: "lasts until the tool changes its headers",
    Kind.NOTRACK: "lasts; stateful rules don't see these packets",
}


_STEADY = 0.015


def proposals(scene: Scene, normal: Normal, before: tuple[str, ...] = ()) -> list[Proposal]:
    """Return the proposals for all findings, numbered, those for the largest attack first.

    `before` lists the kinds in the order that the operator saw last: among near equals it stays, so that
    a number does not change its meaning under the finger.
    """
    found: list[Proposal] = []
    vectors = [finding for finding in scene.findings if not finding.state]
    vectors.sort(key=lambda finding: -scene.traffic.share(finding.rows))
    for finding in vectors:
        measured = [
            _measured(scene, finding, candidate, normal) for candidate in candidates(scene, finding, normal)
        ]
        useful = [p for p in measured if p.kind == "notrack" or _worth(p)]
        useful = _choice(_distinct(sorted(useful, key=lambda one: _rank(one, before))))
        found += useful
        helped = any(p.attack_share >= 0.5 and p.collateral_share <= _TOLERABLE for p in useful)
        call = upstream(scene, finding, helped=helped)
        if call is not None:
            found.append(call)
    numbered = []
    for number, proposal in enumerate(found, 1):
        line = fwtop_line(proposal.rule, number) if proposal.rule is not None else ""
        rule = replace(proposal.rule, created_by=f"proposal {number}") if proposal.rule is not None else None
        numbered.append(replace(proposal, number=number, fwtop=line, rule=rule))
    return numbered


def _measured(scene: Scene, finding: Finding, candidate: Candidate, normal: Normal) -> Proposal:
    rule, traffic = candidate.rule, scene.traffic
    drops = rule.kind is not Kind.NOTRACK
    part = stopped(rule.match, rule.limit, traffic) if drops else np.zeros(len(traffic))
    share = share_of(part, traffic, finding.rows)
    cost = harm(rule.match, rule.limit, normal) if drops else None
    pps = float((part * traffic.weight).sum()) / traffic.seconds
    collateral = cost.share if cost else 0.0
    rule = replace(
        rule,
        predicted_pps=pps,
        predicted_attack_share=share,
        predicted_collateral_share=collateral,
    )
    return Proposal(
        number=0,
        kind=rule.kind.value,
        summary=f"{rule.summary} ({candidate.why}; {_LASTS[rule.kind]})",
        attack_share=share,
        collateral_share=collateral,
        collateral_examples=cost.examples if cost else (),
        cost_ns=scene.config.cost_ns.get(rule.kind.value),
        cost_measured=rule.kind.value in scene.config.measured_costs,
        commands=shell_commands(rule),
        rule=rule,
        guess=normal.guess,
        stopped_pps=pps,
    )


def _worth(proposal: Proposal) -> bool:
    """Nobody wants a rule that stops little, or one that hits normal traffic harder than the attack."""
    return proposal.attack_share >= max(USEFUL, proposal.collateral_share)


def _rank(proposal: Proposal, before: tuple[str, ...] = ()) -> float:
    """Order by attack stopped, with harm weighing much more, then by cost and by how fragile it is."""
    cost = (proposal.cost_ns or 1000.0) / 50_000
    fragile = 0.02 if proposal.kind in ("string", "hashlimit") else 0.0
    blunt = 0.03 * _bluntness(proposal.rule) if proposal.guess else 0.0
    place = before.index(proposal.kind) if proposal.kind in before else len(before)
    score = proposal.attack_share - 8 * proposal.collateral_share - cost - fragile - blunt
    return _STEADY * place - score


def _bluntness(rule: Rule | None) -> int:
    """Count what a rule leaves open: without a baseline, the narrower of two equal rules is the safer."""
    if rule is None:
        return 0
    match = rule.match
    narrow = (match.sources, match.payload, match.ip_length, match.ttl, match.sport)
    return max(0, 2 - sum(map(bool, narrow)))


def _distinct(ranked: list[Proposal]) -> list[Proposal]:
    """Drop what stops no more than a better one of the same kind does."""
    kept: list[Proposal] = []
    for proposal in ranked:
        same = [p for p in kept if p.kind == proposal.kind]
        near = [p for p in same if abs(p.attack_share - proposal.attack_share) < 0.005]
        if len(same) < 2 and not near:
            kept.append(proposal)
    return kept


def _choice(ranked: list[Proposal]) -> list[Proposal]:
    """Keep the best of each kind, and further ones while there is room, in their order."""
    first = {proposal.kind: proposal for proposal in reversed(ranked)}
    second = [proposal for proposal in ranked if proposal is not first[proposal.kind]]
    kept = [*first.values(), *second][:_PER_ATTACK]
    return [proposal for proposal in ranked if any(proposal is one for one in kept)]
