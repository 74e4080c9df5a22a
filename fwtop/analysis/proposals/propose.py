"""Proposals against an attack: every suitable rule with its measured effect, best first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.proposals.bystanders import bystanders, has_return_path, reach_of, unseen_share
from fwtop.analysis.proposals.candidates import USEFUL, candidates
from fwtop.analysis.proposals.census import Aim
from fwtop.analysis.proposals.effect import (
    Remainder,
    Remaining,
    clients_harmed,
    dropped_pps,
    harm_by,
    share_stopped,
    stopped_by,
)
from fwtop.analysis.proposals.held import proposals
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.present import lost_now
from fwtop.analysis.proposals.services import Candidate, for_table, proposed
from fwtop.analysis.proposals.signatures import Signature
from fwtop.analysis.proposals.upstream import upstream
from fwtop.model.harm import NO_REACH
from fwtop.model.rule import RANGES, Kind, Rule
from fwtop.model.traffic.snapshot import Proposal
from fwtop.rules.kinds import drops_nothing, of

_PER_ATTACK = 5
_BESIDE = 0.05  # of an attack that an additional rule should stop
_ABOUT = 0.05  # of an attack: rules that differ by less stop about as much
_WORTH = 3.0  # times the share of normal traffic that a rule must stop of the attack
_FEW_SOURCES = 0.03  # score bonus: blocking a few real senders holds whatever they send next
_STEADY = 0.015  # score per place: near equals keep the order that was shown last


class Offer(Struct, frozen=True):
    """A proposal without its number. `key` identifies the same rule against the same attack.

    `gain` is the share (0 to 1) that it stops of what active rules leave of the attack.
    """

    key: str
    proposal: Proposal
    gain: float = 0.0
    beside: bool = False


def offers(
    context: AnalysisContext,
    left: Remainder,
    normal: Normal,
    found: Sequence[Signature],
    *,
    before: Sequence[str],
    remaining: Remaining,
) -> list[Offer]:
    """Return proposals against what is left of an attack, the best first.

    `found` has its signatures, `before` the keys in the order shown last, which near equals keep. What an
    active rule does already stays in the list.
    """
    whole = left.whole
    if whole.held is not None:  # measured on the connections
        made = [Offer(name, one, one.attack_share) for name, one in proposals(context, whole, normal)]
        return [*made, *([] if whole.state else _of_attack(context, left, normal, found, before))]
    if whole.state:
        rules = for_table(context) if Trait.FULL_TABLE in whole.traits else ()
        return [_measured(context, left, rule, normal) for rule in rules]
    made = _of_attack(context, left, normal, found, before)
    return made if left.is_worth_a_rule else [one for one in made if remaining.does(one.proposal.rule)]


def _of_attack(
    context: AnalysisContext,
    left: Remainder,
    normal: Normal,
    found: Sequence[Signature],
    before: Sequence[str],
) -> list[Offer]:
    finding = left.finding if left.is_worth_a_rule else left.whole
    if len(finding.rows) == 0:
        return []
    tried = candidates(context, finding, normal, found)
    measured = [_measured(context, left, candidate, normal) for candidate in tried]
    useful = [offer for offer in measured if _is_worth(offer, USEFUL) and not offer.beside]
    useful = _choice(_distinct(ordered(useful, before)))
    useful += [offer for offer in measured if offer.beside and _is_worth(offer, _BESIDE)]
    call = upstream(context, finding, _effects(useful))
    if call is not None:
        useful.append(Offer("upstream", call))
    return sorted(useful, key=lambda offer: offer.proposal.is_last_resort)


def _effects(offered: Sequence[Offer]) -> list[tuple[float, float]]:
    """Return what rules stop of an attack and of normal traffic: each, and those for parts of it together."""
    harms = [1.0 if one.proposal.is_last_resort else one.proposal.harm for one in offered]
    each = [(offer.gain, harmed) for offer, harmed in zip(offered, harms, strict=True)]
    parts = [one for one, offer in zip(each, offered, strict=True) if offer.beside]
    return [*each, (sum(stopped for stopped, _ in parts), sum(harmed for _, harmed in parts))]


def _measured(context: AnalysisContext, left: Remainder, candidate: Candidate, normal: Normal) -> Offer:
    """Replay a candidate on the attack, on what is left of it, and on normal traffic."""
    rule, traffic, finding = candidate.rule, context.traffic, left.whole
    rows, rest, before = finding.rows, left.finding.rows, left.stopped
    drops = not drops_nothing(rule)
    if any(item.offset is None for part in (rule, *rule.parts) for item in part.match.payload):
        traffic, chosen = context.subset
        rows, rest = (np.flatnonzero(np.isin(chosen, one)) for one in (rows, rest))
        before = before[chosen] if before is not None else None
    dropped = stopped_by(rule, context, traffic) if drops else np.zeros(len(traffic))
    share = gain = share_stopped(dropped, rule.match, traffic, finding, rows) if drops else 0.0
    if drops and left.is_worth_a_rule and left.share < 1.0:
        gain = share_stopped(dropped, rule.match, traffic, finding, rest, before=before)
    cost = harm_by(rule, normal, context.traffic) if drops else None
    pps = dropped_pps(dropped, rule.match, traffic, np.arange(len(traffic)))
    reach = reach_of(context, (finding,), rule, cost.part, normal) if cost else NO_REACH
    aim, returns = Aim.at(finding, context), has_return_path(context, finding)
    clients = None
    if cost and len(normal.clients):
        now = lost_now(rule, dropped, context, normal, returns=returns)
        clients = clients_harmed(rule, cost, now, normal, aim)
    rule = replace(
        rule,
        predicted_pps=pps,
        predicted_attack_share=share,
        predicted_collateral_share=min(1.0, cost.share + unseen_share(rule, reach, normal)) if cost else 0.0,
        predicted_guess=normal.guess,
        predicted_clients=clients,
    )
    found = normal.rehearsed(rule, context.known)
    met = dropped if traffic is context.traffic else np.zeros(len(context.traffic))
    made = proposed(
        context, finding, rule, f"{candidate.why}; {of(_looks_at(rule)).evaded}",
        already_share=max(0.0, share - gain * left.share),
        collateral_examples=cost.examples if cost else (),
        guess=normal.guess,
        needs_force=found.refused or found.broad or "",
        bystanders=bystanders(
            context, rule, (cost.part if cost else normal.pps * 0, met), normal, found, returns=returns
        ),
        return_path=returns,
        stopped_pps=pps,
        reach=reach,
    )  # fmt: skip
    key = f"{_looks_at(candidate.rule).value} {candidate.form}"
    return Offer(key, made, gain, candidate.beside)


def _sort_of(proposal: Proposal) -> str:
    """Return the group of a proposal, for choosing among similar ones."""
    return _looks_at(proposal.rule).value if proposal.rule is not None else proposal.kind


def _looks_at(rule: Rule) -> Kind:
    if drops_nothing(rule):
        return rule.kind
    return Kind.HASHLIMIT if rule.limit else Kind.IPSET if rule.match.sources else rule.kind


def _is_worth(offer: Offer, least: float) -> bool:
    """Check that a rule stops at least `least`, and clearly more of the attack than of normal traffic."""
    rule = offer.proposal.rule
    if rule is not None and drops_nothing(rule):
        return True
    return offer.gain >= max(least, _WORTH * offer.proposal.collateral_share)


def ordered(offered: Sequence[Offer], before: Sequence[str] = ()) -> list[Offer]:
    """Return the best first: who stops most at nearly no harm, the cheaper of equals, last resorts last."""
    ranked = spared_first(sorted(offered, key=lambda one: rank(one, before)))
    return sorted(ranked, key=lambda offer: offer.proposal.is_last_resort)


_LEAVES_OPEN = 0.1  # contents come after the handshake: the server waits for the rest of each request


def rank(offer: Offer, before: Sequence[str] = ()) -> float:
    """Return a sort key: attack stopped, less harm (weighted more), cost and fragility.

    Cost counts as the share of a core at the dropped rate, and per packet: a rule that needs more than a
    core can't keep up.
    """
    proposal = offer.proposal
    cost_ns = proposal.cost_ns or 1000.0
    cores = proposal.stopped_pps * cost_ns * 1e-9
    cost = 0.1 * min(1.0, cores) + cost_ns / 50_000
    fragile = 0.02 if _sort_of(proposal) in ("string", "hashlimit") else 0.0
    fragile += _LEAVES_OPEN if proposal.return_path and proposal.rule and proposal.rule.match.payload else 0.0
    blunt = 0.03 * _bluntness(proposal.rule) if proposal.guess else 0.0
    aimed = _FEW_SOURCES if proposal.rule is not None and 0 < len(proposal.rule.match.sources) <= 3 else 0.0
    place = before.index(offer.key) if offer.key in before else len(before)
    score = offer.gain - 8 * proposal.harm - cost - fragile - blunt + aimed
    return _STEADY * place - score


def spared_first(ranked: list[Offer]) -> list[Offer]:
    """Put a rule that cuts known clients of the attacked service behind those that stop about as much."""
    result = [offer for offer in ranked if not _cuts(offer)]
    place = 0
    for offer in ranked:
        if not _cuts(offer):
            place = result.index(offer) + 1
            continue
        others = enumerate(result, 1)
        spared = [n for n, one in others if not _cuts(one) and one.gain >= offer.gain - _ABOUT]
        place = max(place, *spared, 0)
        result.insert(place, offer)
        place += 1
    return result


def _cuts(offer: Offer) -> bool:
    clients = offer.proposal.clients
    return clients is not None and clients.hit_half > 0


def _bluntness(rule: Rule | None) -> int:
    """Count how unspecific a rule is: without a baseline, the narrower of two equal rules is safer."""
    if rule is None:
        return 0
    match = rule.match
    ranges = (getattr(match, name) for name in RANGES)
    narrow = (match.sources, match.payload, match.sport, *ranges)
    return max(0, 2 - sum(map(bool, narrow)))


def _distinct(ranked: list[Offer]) -> list[Offer]:
    """Drop proposals that stop no more than a better one of the same group."""
    kept: list[Offer] = []
    for offer in ranked:
        sort = _sort_of(offer.proposal)
        same = [one for one in kept if _sort_of(one.proposal) == sort]
        near = [one for one in same if abs(one.gain - offer.gain) < 0.005]
        if len(same) < 2 and not near:
            kept.append(offer)
    return kept


def _choice(ranked: list[Offer]) -> list[Offer]:
    """Keep the best of each group, then further ones up to the limit, in order."""
    first = {_sort_of(offer.proposal): offer for offer in reversed(ranked)}
    second = [offer for offer in ranked if offer is not first[_sort_of(offer.proposal)]]
    kept = [*first.values(), *second][:_PER_ATTACK]
    return [offer for offer in ranked if any(offer is one for one in kept)]
