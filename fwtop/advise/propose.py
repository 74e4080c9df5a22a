"""What to do about an attack: every mitigation that fits, with its measured effect, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fwtop.advise.candidates import USEFUL, Candidate, candidates, for_table
from fwtop.advise.commands import fwtop_line, shell_commands
from fwtop.advise.effect import Normal, harm_by, share_stopped, stopped_by
from fwtop.advise.scene import Finding, Scene
from fwtop.advise.signature import Signature
from fwtop.advise.upstream import upstream
from fwtop.model.rule import RANGES, Kind, Rule
from fwtop.model.snapshot import Proposal

_PER_ATTACK = 5
_BESIDE = 0.05  # of an attack that a rule beside the others should stop
_WORTH = 3.0  # times as much of the attack as of normal traffic
_FEW_SOURCES = 0.03  # of the score: a handful of real senders is what it is aimed at, whatever they send next
_STEADY = 0.015  # of the score a place: near equals keep the order that the operator saw last
_LASTS = {
    Kind.IPSET: "lasts while these sources are used",
    Kind.HASHLIMIT: "lasts as long as sources are few enough to be fast",
    Kind.STRING: "lasts until the tool changes its payload",
    Kind.XDP: "lasts until the tool changes its headers",
    Kind.NOTRACK: "lasts; stateful rules don't see these packets",
    Kind.SYNPROXY: "lasts; each SYN still costs an answer",
    Kind.SYSCTL: "lasts until the table fills faster still",
}
_DROP_NOTHING = frozenset({Kind.NOTRACK, Kind.SYSCTL})


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposal without its number. `key` names the same rule in the next judgement, too."""

    key: str
    proposal: Proposal
    beside: bool = False


def offers(
    scene: Scene,
    normal: Normal,
    found: Mapping[str, Sequence[Signature]],
    before: Sequence[str] = (),
) -> list[Offer]:
    """Return what could be done about all findings: the best of each attack first.

    `found` has the signatures of each finding (by `Finding.key`), `before` the keys in the order that the
    operator saw last: among near equals it stays.
    """
    vectors = [finding for finding in scene.findings if not finding.state]
    vectors.sort(key=lambda finding: -scene.traffic.share(finding.rows))
    lists = [_of_attack(scene, finding, normal, found.get(finding.key, ()), before) for finding in vectors]
    first = [offers[0] for offers in lists if offers]
    rest = [offer for offers in lists for offer in offers[1:]]
    unique = {offer.key: offer for offer in (*first, *rest, *_for_state(scene, normal))}
    return list(unique.values())


def numbered(offer: Offer, number: int) -> Proposal:
    """Return the proposal under its number."""
    proposal = replace(offer.proposal, number=number)
    if proposal.rule is None:
        return proposal
    rule = replace(proposal.rule, created_by=f"proposal {number}")
    return replace(proposal, fwtop=fwtop_line(rule, number), rule=rule)


def _of_attack(
    scene: Scene, finding: Finding, normal: Normal, found: Sequence[Signature], before: Sequence[str]
) -> list[Offer]:
    measured = [
        Offer(
            f"{finding.key} {_looks_at(candidate.rule).value} {candidate.form}",
            _measured(scene, finding, candidate, normal),
            candidate.beside,
        )
        for candidate in candidates(scene, finding, normal, found)
    ]
    useful = [offer for offer in measured if _is_worth(offer.proposal, USEFUL) and not offer.beside]
    useful = _choice(_distinct(sorted(useful, key=lambda one: rank(one, before))))
    useful += [offer for offer in measured if offer.beside and _is_worth(offer.proposal, _BESIDE)]
    call = upstream(scene, finding, [offer.proposal for offer in useful])
    if call is not None:
        useful.append(Offer(f"{finding.key} upstream", call))
    return useful


def _for_state(scene: Scene, normal: Normal) -> list[Offer]:
    """Return what helps where it is a table that is attacked, beside what stops its vectors."""
    state = [finding for finding in scene.findings if finding.kind == "conntrack_exhaustion"]
    return [
        Offer(f"{finding.key} sysctl {one.form}", _measured(scene, finding, one, normal))
        for finding in state
        for one in for_table(scene)
    ]


def _measured(scene: Scene, finding: Finding, candidate: Candidate, normal: Normal) -> Proposal:
    rule, traffic, rows = candidate.rule, scene.traffic, finding.rows
    drops = rule.kind not in _DROP_NOTHING
    if any(item.offset is None for item in rule.match.payload):
        traffic, chosen = scene.few
        rows = np.flatnonzero(np.isin(chosen, finding.rows))
    part = stopped_by(rule, scene, traffic) if drops else np.zeros(len(traffic))
    share = share_stopped(part, rule.match, traffic, finding, rows) if drops else 0.0
    cost = harm_by(rule, normal, scene.traffic) if drops else None
    pps = float((part * traffic.weight).sum()) / traffic.seconds if drops else 0.0
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
        summary=f"{rule.summary} ({candidate.why}; {_LASTS[_looks_at(rule)]})",
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


def _sort_of(proposal: Proposal) -> str:
    """Return what a rule looks at, named by the kind that usually does it, wherever this one does."""
    return _looks_at(proposal.rule).value if proposal.rule is not None else proposal.kind


def _looks_at(rule: Rule) -> Kind:
    if rule.kind in _DROP_NOTHING:
        return rule.kind
    return Kind.HASHLIMIT if rule.limit else Kind.IPSET if rule.match.sources else rule.kind


def _is_worth(proposal: Proposal, least: float) -> bool:
    """Leave out a rule that stops less than `least`, or hits normal traffic about as hard as the attack."""
    if proposal.rule is not None and proposal.rule.kind in _DROP_NOTHING:
        return True
    return proposal.attack_share >= max(least, _WORTH * proposal.collateral_share)


def rank(offer: Offer, before: Sequence[str] = ()) -> float:
    """Order by attack stopped, with harm weighing much more, then by cost and by how fragile it is.

    A rule's cost counts as the part of a core that it takes at the rate that it drops, and beyond a core
    it counts in full: such a rule can't keep up.
    """
    proposal = offer.proposal
    cost_ns = proposal.cost_ns or 1000.0
    cores = proposal.stopped_pps * cost_ns * 1e-9
    cost = 0.1 * min(1.0, cores) + cost_ns / 50_000
    fragile = 0.02 if _sort_of(proposal) in ("string", "hashlimit") else 0.0
    blunt = 0.03 * _bluntness(proposal.rule) if proposal.guess else 0.0
    aimed = _FEW_SOURCES if proposal.rule is not None and 0 < len(proposal.rule.match.sources) <= 3 else 0.0
    place = before.index(offer.key) if offer.key in before else len(before)
    score = proposal.attack_share - 8 * proposal.collateral_share - cost - fragile - blunt + aimed
    return _STEADY * place - score


def _bluntness(rule: Rule | None) -> int:
    """Count what a rule leaves open: without a baseline, the narrower of two equal rules is the safer."""
    if rule is None:
        return 0
    match = rule.match
    ranges = (getattr(match, name) for name in RANGES)
    narrow = (match.sources, match.payload, match.sport, *ranges)
    return max(0, 2 - sum(map(bool, narrow)))


def _distinct(ranked: list[Offer]) -> list[Offer]:
    """Drop what stops no more than a better one of the same kind does."""
    kept: list[Offer] = []
    for offer in ranked:
        sort = _sort_of(offer.proposal)
        same = [one.proposal for one in kept if _sort_of(one.proposal) == sort]
        near = [one for one in same if abs(one.attack_share - offer.proposal.attack_share) < 0.005]
        if len(same) < 2 and not near:
            kept.append(offer)
    return kept


def _choice(ranked: list[Offer]) -> list[Offer]:
    """Keep the best of each kind, and further ones while there is room, in their order."""
    first = {_sort_of(offer.proposal): offer for offer in reversed(ranked)}
    second = [offer for offer in ranked if offer is not first[_sort_of(offer.proposal)]]
    kept = [*first.values(), *second][:_PER_ATTACK]
    return [offer for offer in ranked if any(offer is one for one in kept)]
