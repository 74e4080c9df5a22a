"""Who gets the packets: one resolver for all hypotheses, whatever the order in which they are declared.

Cuts take their turn by what proves their attacks. Within a turn all groups are cut from the same packets; the
likeliest attack takes what it explains first. What lost packets to it is cut and judged again when no attack
is left that lost none: once for all attacks beside it, not once for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.compete import Explained, compete
from fwtop.analysis.engine.fragments import attach
from fwtop.analysis.engine.group import Cut, Proof
from fwtop.analysis.engine.hypothesis import Hypothesis
from fwtop.analysis.window.counting import distinct_values

_MOST = 64  # attacks of one turn: a bound on its cost


@lru_cache(maxsize=4)
def entries_by_turn(entries: tuple[Hypothesis, ...]) -> dict[Proof, dict[Cut, list[Hypothesis]]]:
    """Return the explanations of each cut's groups: the turns in their order, in them cuts by their names."""
    every = [one for one in entries if one.of is None]
    cuts = sorted({one.of for one in entries if one.of is not None}, key=lambda cut: cut.name)
    about = {
        cut: [*(one for one in entries if one.of is cut), *(() if cut.complete else every)] for cut in cuts
    }
    return {proof: {cut: about[cut] for cut in cuts if cut.proof == proof} for proof in Proof}


def resolve(context: AnalysisContext, about: Mapping[Cut, Sequence[Hypothesis]]) -> None:
    """Explain all groups of the cuts of one turn; attacks become findings of the context."""
    cuts = {cut.name: cut for cut in about}
    opened: list[Explained] = []  # groups that lost no packets
    stale = set(cuts)  # cuts whose packets are to be cut again
    for _ in range(_MOST):
        attacks = [one for one in opened if one.is_attack]
        if not attacks:
            opened = _cut_again(context, opened, {cuts[name]: about[cuts[name]] for name in stale})
            stale = set()
            attacks = [one for one in opened if one.is_attack]
        if not attacks:
            break
        winner = max(attacks, key=lambda one: one.rank)
        cut = winner.group.cut
        one = _joined(winner, cuts[cut], [one for one in attacks if one.group.cut == cut])
        context.claim(one.finding())
        _tell(context, one)
        attach(context)
        claimed = ~context.unclaimed
        lost = [one for one in opened if one.lost(winner, claimed)]
        stale |= {one.group.cut for one in lost if one.group.cut != cut or cuts[cut].again}
        opened = [one for one in opened if one not in lost]
    for one in _cut_again(context, opened, {cuts[name]: about[cuts[name]] for name in stale}):
        _tell(context, one)
        if one.settled:
            context.benign[one.group.packets.rows] = True


def _cut_again(
    context: AnalysisContext, opened: list[Explained], stale: Mapping[Cut, Sequence[Hypothesis]]
) -> list[Explained]:
    """Return the groups, those of stale cuts cut and explained anew."""
    names = {cut.name for cut in stale}
    kept = [one for one in opened if one.group.cut not in names]
    return [*kept, *chain.from_iterable(_explained(context, cut, about) for cut, about in stale.items())]


def _tell(context: AnalysisContext, one: Explained) -> None:
    """Keep an explained group if the operator asks for explanations.

    It refers to its context: otherwise each window's packets would wait for the garbage collector.
    """
    if context.explains:
        context.explained.append(one)


def _explained(context: AnalysisContext, cut: Cut, entries: Sequence[Hypothesis]) -> list[Explained]:
    found = []
    for group in cut(context):
        found.append(compete(group, entries))
        if group.otherwise is not None and found[-1].ranked and not found[-1].is_attack:
            part = group.otherwise()
            part.cut = cut.name
            if part.packets.n not in (0, group.packets.n):
                found.append(compete(part, entries))
    return found


def _joined(winner: Explained, cut: Cut, attacks: Sequence[Explained]) -> Explained:
    """Join the groups of a cut that one tool makes: floods to several ports are one attack."""
    same = [one for one in attacks if one.best is winner.best]
    if cut.join is None or len(same) < 2 or not winner.best.joins:
        return winner
    rows = distinct_values(np.concatenate([one.group.packets.rows for one in same]))
    group = cut.join(winner.group.context, [one.group for one in same], rows)
    group.cut = cut.name
    return Explained(group, max(same, key=lambda one: one.rank).ranked, winner.best.rows(group))
