"""Rules against attacks that hold connections, and what any rule does to open connections, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.connections import Held, source_of
from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.proposals.census import Aim
from fwtop.analysis.proposals.matching import cut, in_prefixes
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.services import proposed, without_rule
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import TCP, mix
from fwtop.model.addresses.address import format_address
from fwtop.model.rule import ConnectionLimit, Kind, Match, Preview, Rule
from fwtop.model.traffic.packets import F64, U64, Connections, SocketTable
from fwtop.model.traffic.snapshot import Proposal
from fwtop.render.numbers import plural
from fwtop.rules.kinds import drops_nothing, of
from fwtop.rules.words import describe

_WORTH = 0.3  # of the attack's connections
_LIMITS = (8, 10, 20, 50, 100, 200, 500)  # connections a source; browsers open six
_EXAMPLES = 4


class Effect(Struct, frozen=True):
    """Shares, 0 to 1, of the attack's connections and of the port's others that a rule ends or keeps out."""

    stopped: float
    harm: float
    examples: tuple[str, ...] = ()
    losing: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # hashes of sources


def proposals(context: AnalysisContext, finding: Finding, normal: Normal) -> Iterator[tuple[str, Proposal]]:
    """Yield rules with a name that stays the same across judgements, and the advice for the server."""
    held = finding.held
    if held is None:
        return
    spared = _bystanders(held, normal)
    tried = [_block(context, held, spared), _limit(context, held, spared)]
    measured = [one for one in tried if one is not None and one[1].stopped >= _WORTH]
    for draft, effect, why in sorted(measured, key=lambda one: 8 * one[1].harm - one[1].stopped):
        rule = replace(
            draft,
            predicted_attack_share=effect.stopped,
            predicted_collateral_share=effect.harm,
            predicted_clients=normal.census.harm_of_sources(effect.losing, Aim.at(finding, context)),
        )
        made = proposed(
            context, finding, rule, f"{why}; {of(rule.kind).evaded}",
            collateral_examples=effect.examples,
            stopped_pps=context.traffic.pps(finding.rows) * effect.stopped,
            return_path=True,
        )  # fmt: skip
        yield rule.kind.value, made
    what = f"let the server on port {held.port} end them sooner: its timeouts"
    yield "service", without_rule(finding, "service", what, finding.settings)


def _block(context: AnalysisContext, held: Held, others: Connections) -> tuple[Rule, Effect, str] | None:
    chosen = tuple(prefix for prefix, _ in held.senders[: context.config.max_prefixes])
    rule = Rule("", Kind.IPSET, Match(sources=chosen), "", context.config.ttl_seconds, close_open=True)
    effect = effect_on(rule, held, others)
    number = round(effect.stopped * held.number)
    what = str(chosen[0]) if len(chosen) == 1 else plural(len(chosen), "source")
    summary = f"block {what} and close the open connections"
    return replace(rule, summary=summary), effect, f"they hold {count(number)} of {count(held.number)}"


def _limit(context: AnalysisContext, held: Held, others: Connections) -> tuple[Rule, Effect, str] | None:
    """Return the strictest limit that hardly any other client exceeds."""
    match = Match(protocol=TCP, dport=held.port)
    for most in _LIMITS:
        rule = Rule(
            "", Kind.CONNLIMIT, match, "", context.config.ttl_seconds,
            connections=ConnectionLimit(most), close_open=True,
        )  # fmt: skip
        effect = effect_on(rule, held, others)
        if effect.stopped < _WORTH:
            return None
        if effect.harm <= context.config.collateral_limit:
            summary = f"limit {describe(match)} to {most} connections per source and close those above"
            return replace(rule, summary=summary), effect, "hardly any other client has as many"
    return None


def _bystanders(held: Held, normal: Normal) -> Connections:
    """Return the connections of clients: an attacking source is one only if it was known long before."""
    others, clients = held.others, normal.clients
    known = among(mix(others.hi, others.lo), clients.source[clients.long_known])
    return others.select(known | ~np.isin(source_of(others), held.source))


def is_about(match: Match, held: Held) -> bool:
    """Say whether a match takes packets of the service whose connections are held."""
    return match.protocol in (None, TCP) and match.dport in (None, held.port)


def effect_on(rule: Rule, held: Held, others: Connections) -> Effect:
    """Return what the rule does to an attack that holds connections; nothing on another port."""
    if not is_about(rule.match, held):
        return Effect(0.0, 0.0)
    if rule.connections is not None:
        mine, theirs = _above(rule.connections, held, others)
    elif rule.match.sources and rule.limit is None and not drops_nothing(rule):
        mine, theirs = (
            in_prefixes(part.family, part.hi, part.lo, rule.match.sources).astype(np.float64)
            for part in (held.connections, others)
        )
    else:
        return Effect(0.0, 0.0)
    parts = ((held.connections, mine > 0), (others, theirs > 0))
    losing = np.concatenate([mix(part.hi[hit], part.lo[hit]) for part, hit in parts])
    return Effect(_mean(mine), _mean(theirs), _examples(theirs, others), losing)


def above_limit(rule: Rule, table: SocketTable) -> tuple[float, tuple[str, ...]]:
    """Return the share of a port's connections that are above a limit, and whose they are."""
    held, limit = table.connections, rule.connections
    if limit is None:
        return 0.0, ()
    mine = held if rule.match.dport is None else held.select(held.port == rule.match.dport)
    _, place, counts = np.unique(_prefixes(mine, limit), return_inverse=True, return_counts=True)
    above = np.maximum(counts - limit.most, 0) / np.maximum(counts, 1)
    return _mean(above[place]), _examples(above[place], mine)


def _above(limit: ConnectionLimit, held: Held, others: Connections) -> tuple[F64, F64]:
    """Return which part of each connection, the attack's and others, is above a limit.

    Of an attacking source the held ones go first, as nothing was sent on them for longest. Its other clients
    are counted as harmed all the same: they get no new connection while it holds its own.
    """
    mine, theirs = _prefixes(held.connections, limit), _prefixes(others, limit)
    _, place = np.unique(np.concatenate((mine, theirs)), return_inverse=True)
    own, other = place[: len(mine)], place[len(mine) :]
    size = int(place.max()) + 1 if len(place) else 0
    attacking, ordinary = np.bincount(own, minlength=size), np.bincount(other, minlength=size)
    above = np.maximum(attacking + ordinary - limit.most, 0)
    ended = np.minimum(above, attacking) / np.maximum(attacking, 1)
    kept_out = np.where(attacking >= limit.most, 1.0, (above - ended * attacking) / np.maximum(ordinary, 1))
    return ended[own], kept_out[other]


def _prefixes(part: Connections, limit: ConnectionLimit) -> U64:
    four = part.family == 4
    hi4, lo4 = cut(part.hi, part.lo, 4, limit.prefix_v4)
    hi6, lo6 = cut(part.hi, part.lo, 6, limit.prefix_v6)
    return mix(np.where(four, hi4, hi6), np.where(four, lo4, lo6))


def _mean(parts: F64) -> float:
    return float(parts.mean()) if len(parts) else 0.0


def _examples(parts: F64, others: Connections) -> tuple[str, ...]:
    hit = others.select(parts > 0)
    names = (
        format_address(*row)
        for row in zip(hit.family.tolist(), hit.hi.tolist(), hit.lo.tolist(), strict=True)
    )
    return tuple(f"connections of {name}" for name in list(dict.fromkeys(names))[:_EXAMPLES])


def with_connections(
    made: Preview, rule: Rule, context: AnalysisContext, attacks: Sequence[Finding], normal: Normal
) -> Preview:
    """Add the attacks that hold connections, and of a limit of connections the clients that exceed it."""
    effects = [
        (one, effect_on(rule, one.held, _bystanders(one.held, normal)))
        for one in attacks
        if one.held is not None
    ]
    if effects:
        attack, best = max(effects, key=lambda item: item[1].stopped)
        named = ((one.title, effect.stopped) for one, effect in effects)
        made = replace(made, attacks=tuple(sorted((*made.attacks, *named), key=lambda item: -item[1])))
        if best.stopped > made.attack_share:
            clients = normal.census.harm_of_sources(best.losing, Aim.at(attack, context))
            made = replace(made, attack=attack.title, attack_share=best.stopped, clients=clients)
        if attack.title == made.attack and attack.held is not None:
            held = attack.held.number
            made = replace(made, ends=round(best.stopped * held), ends_of=held)
        if best.harm > made.collateral_share:
            made = replace(made, collateral_share=best.harm, examples=best.examples)
    elif rule.connections is not None and context.sockets is not None:
        share, examples = above_limit(rule, context.sockets)
        made = replace(made, collateral_share=share, examples=examples, guess=False)
    return made
