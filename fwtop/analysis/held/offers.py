"""Proposals against attacks that hold connections, each with what it does to the connections there are."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.held.effect import HeldEffect, effect_on
from fwtop.analysis.held.judge import Held
from fwtop.analysis.window.traffic import TCP
from fwtop.model.rule import ConnectionLimit, Kind, Match, Rule
from fwtop.model.traffic.snapshot import Proposal
from fwtop.render.numbers import plural
from fwtop.rules.exports.commands import shell_commands
from fwtop.rules.kinds import of
from fwtop.rules.words import describe

_WORTH = 0.3  # of the attack's connections
_LIMITS = (8, 10, 20, 50, 100, 200, 500)  # connections a source; browsers open six
_NAMED = 3


def proposals(context: AnalysisContext, finding: Finding) -> Iterator[tuple[str, Proposal]]:
    """Yield rules with a name that stays the same across judgements, and the advice for the server."""
    held = finding.held
    if held is None:
        return
    made = [_block(context, held), _limit(context, held)]
    measured = [(rule, effect, why) for rule, effect, why in filter(None, made) if effect.stopped >= _WORTH]
    for rule, effect, why in sorted(measured, key=lambda one: 8 * one[1].harm - one[1].stopped):
        yield rule.kind.value, _proposal(context, finding, rule, effect, why)
    yield "service", _advice(finding, held)


def _block(context: AnalysisContext, held: Held) -> tuple[Rule, HeldEffect, str] | None:
    chosen = tuple(prefix for prefix, _ in held.senders[: context.config.max_prefixes])
    rule = Rule("", Kind.IPSET, Match(sources=chosen), "", context.config.ttl_seconds, close_open=True)
    effect = effect_on(rule, held)
    number = round(effect.stopped * held.group.number)
    what = str(chosen[0]) if len(chosen) == 1 else plural(len(chosen), "source")
    summary = f"block {what} and close the open connections"
    return replace(rule, summary=summary), effect, f"they hold {count(number)} of {count(held.group.number)}"


def _limit(context: AnalysisContext, held: Held) -> tuple[Rule, HeldEffect, str] | None:
    """Return the strictest limit that hardly any other client exceeds."""
    match = Match(protocol=TCP, dport=held.group.port)
    for most in _LIMITS:
        rule = Rule(
            "", Kind.CONNLIMIT, match, "", context.config.ttl_seconds,
            connections=ConnectionLimit(most), close_open=True,
        )  # fmt: skip
        effect = effect_on(rule, held)
        if effect.stopped < _WORTH:
            return None
        if effect.harm <= context.config.collateral_limit:
            summary = f"limit {describe(match)} to {most} connections per source and close those above"
            return replace(rule, summary=summary), effect, "hardly any other client has as many"
    return None


def _proposal(
    context: AnalysisContext, finding: Finding, rule: Rule, effect: HeldEffect, why: str
) -> Proposal:
    pps = context.traffic.pps(finding.rows) * effect.stopped
    rule = replace(
        rule,
        predicted_attack_share=effect.stopped,
        predicted_collateral_share=effect.harm,
    )
    return Proposal(
        number=0,
        kind=rule.kind.value,
        summary=f"{rule.summary} ({why}; {of(rule.kind).evaded})",
        attack=finding.title,
        attack_share=effect.stopped,
        collateral_share=effect.harm,
        collateral_examples=effect.examples,
        cost_ns=context.config.cost_ns.get(rule.kind.value),
        cost_measured=rule.kind.value in context.config.measured_costs,
        commands=shell_commands(rule),
        rule=rule,
        stopped_pps=pps,
    )


def _advice(finding: Finding, held: Held) -> Proposal:
    """Return the settings with which the server itself ends such connections."""
    best = held.hypothesis
    return Proposal(
        number=0,
        kind="service",
        summary=f"let the server on port {held.group.port} end such connections sooner: its timeouts",
        attack=finding.title,
        attack_share=0.0,
        collateral_share=0.0,
        commands=(f"# nginx: {best.nginx}", f"# Apache: {best.apache}"),
    )
