"""Who gets the packets: one resolver for all hypotheses, whatever the order in which they are declared.

Cuts take their turn by what proves their attacks. Within a turn all groups are cut from the same packets; the
likeliest attack takes what it explains first. What lost packets to it is cut and judged again when no attack
is left that lost none: once for all attacks beside it, not once for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.compete import Explained, compete
from fwtop.analysis.engine.fragments import attach
from fwtop.analysis.engine.group import Cut
from fwtop.analysis.engine.hypothesis import Hypothesis
from fwtop.analysis.window.counting import distinct_values, marked

_MOST = 64  # attacks of one turn: a bound on its cost


def entries_by_cut(entries: Iterable[Hypothesis]) -> dict[Cut, list[Hypothesis]]:
    """Return the explanations of each cut's groups, by the names of the cuts."""
    every: list[Hypothesis] = []
    about: defaultdict[Cut, list[Hypothesis]] = defaultdict(list)
    for one in entries:
        (every if one.of is None else about[one.of]).append(one)
    return {cut: [*about[cut], *every] for cut in sorted(about, key=lambda cut: cut.name)}


def resolve(context: AnalysisContext, about: Mapping[Cut, Sequence[Hypothesis]]) -> None:
    """Explain all groups of the cuts of one turn; attacks become findings of the context."""
    opened: dict[Cut, list[Explained]] = {}
    stale = set(about)
    for _ in range(_MOST):
        attacks = _attacks(opened)
        if not attacks:
            opened |= {cut: _explained(context, cut, about[cut]) for cut in stale}
            stale = set()
            attacks = _attacks(opened)
        if not attacks:
            break
        winner, cut = max(attacks, key=lambda item: item[0].rank)
        one = _joined(winner, cut, opened[cut])
        context.claim(one.finding())
        _tell(context, one)
        attach(context)
        for other, found in opened.items():
            opened[other] = [group for group in found if not _contested(context, group)]
            if (other is cut and cut.again) or (other is not cut and len(opened[other]) < len(found)):
                stale.add(other)
    opened |= {cut: _explained(context, cut, about[cut]) for cut in stale}
    for found in opened.values():
        for one in found:
            _tell(context, one)
            if one.settled:
                context.benign[one.group.packets.rows] = True


def _attacks(opened: Mapping[Cut, Sequence[Explained]]) -> list[tuple[Explained, Cut]]:
    return [(one, cut) for cut, found in opened.items() for one in found if one.is_attack]


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
            if 0 < part.packets.n < group.packets.n:
                found.append(compete(part, entries))
    return found


def _contested(context: AnalysisContext, one: Explained) -> bool:
    """Check whether an attack took packets of a group, or of those that its own explanation would take."""
    free, rows = context.unclaimed, one.group.packets.rows
    return marked(free[rows]) < len(rows) or (one.rows is not rows and marked(free[one.rows]) < len(one.rows))


def _joined(winner: Explained, cut: Cut, found: Sequence[Explained]) -> Explained:
    """Join the groups of a cut that one tool makes: floods to several ports are one attack."""
    same = [one for one in found if one.is_attack and one.best is winner.best]
    if cut.join is None or len(same) < 2 or not winner.best.joins:
        return winner
    rows = distinct_values(np.concatenate([one.group.packets.rows for one in same]))
    group = cut.join(winner.group.context, [one.group for one in same], rows)
    group.cut = cut.name
    return Explained(group, max(same, key=lambda one: one.rank).ranked, winner.best.rows(group))
