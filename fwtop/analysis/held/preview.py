"""What a rule does to open connections, in the preview of any rule."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.held.effect import above_limit, effect_on
from fwtop.model.rule import Preview, Rule


def with_connections(
    made: Preview, rule: Rule, context: AnalysisContext, attacks: Sequence[Finding]
) -> Preview:
    """Add the attacks that hold connections, and of a limit of connections the clients that exceed it."""
    effects = [(one.title, effect_on(rule, one.held)) for one in attacks if one.held is not None]
    if effects:
        title, best = max(effects, key=lambda item: item[1].stopped)
        named = ((name, effect.stopped) for name, effect in effects)
        made = replace(made, attacks=tuple(sorted((*made.attacks, *named), key=lambda item: -item[1])))
        if best.stopped > made.attack_share:
            made = replace(made, attack=title, attack_share=best.stopped)
        if best.harm > made.collateral_share:
            made = replace(made, collateral_share=best.harm, examples=best.examples)
    elif rule.connections is not None and context.sockets is not None:
        share, examples = above_limit(rule, context.sockets)
        made = replace(made, collateral_share=share, examples=examples, guess=False)
    return made
