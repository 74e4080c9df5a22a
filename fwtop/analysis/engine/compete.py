"""Hypotheses compete for a group: the shares of exp(log-odds) are their probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import Finding
from fwtop.analysis.engine.group import Group
from fwtop.analysis.engine.hypothesis import Hypothesis, Needs, own_rows
from fwtop.analysis.engine.words import said
from fwtop.analysis.window.counting import marked
from fwtop.analysis.window.traffic import Rows
from fwtop.model.traffic.packets import Mask

_CLEAR = 0.99  # from which the more specific of two explanations takes the packets


class Explained(Struct, frozen=True, eq=False, dict=True):
    """A group with the probabilities of its explanations, likeliest first; empty if no attack is possible."""

    group: Group
    ranked: tuple[tuple[Hypothesis, float], ...]
    rows: Rows  # the packets that the likeliest explanation takes
    ruled_out: tuple[tuple[Hypothesis, Needs], ...] = ()  # with the first need that isn't met

    @cached_property
    def attack(self) -> float:
        """Probability that any attack explains it."""
        return sum(share for one, share in self.ranked if one.kind)

    @cached_property
    def is_attack(self) -> bool:
        """Whether an attack explains it better than all that is ordinary."""
        return self.attack > self.group.sure

    @cached_property
    def best(self) -> Hypothesis:
        """The likeliest attack."""
        return next(one for one, _ in self.ranked if one.kind)

    @cached_property
    def at_stake(self) -> Rows:
        """The packets of the group, and others that the likeliest explanation takes."""
        own = self.group.packets.rows
        return own if self.rows is own else np.concatenate((own, self.rows))

    @property
    def settled(self) -> bool:
        """Whether a use is known that weaker proof may not deny."""
        return not self.is_attack and any(one.settled(self.group) for one, _ in self.ranked)

    def lost(self, winner: Explained, claimed: Mask) -> bool:
        """Whether an attack that was named took some of its packets, or the sources of most connections."""
        if self.group.held is not None and winner.group.held is not None:
            return self.group.held.belongs_to(winner.group.held)
        return bool(marked(claimed.take(self.at_stake)))

    @cached_property
    def rank(self) -> tuple[tuple[float, ...], float, int, str, str, int]:
        """Orders attacks that contest packets: by probability, and of certain ones by how much they need.

        What is left is repeatable, whatever the order in which groups were cut.
        """
        certain = min(self.attack, _CLEAR)
        first = int(self.group.packets.rows[0]) if self.group.packets.n else 0
        return self.group.order, certain, len(self.best.needs), self.best.name, self.group.cut, first

    def finding(self) -> Finding:
        """Return the attack, its evidence strongest first."""
        best, group = self.best, self.group
        return Finding(
            said(best.kind, group),
            said(best.title or best.name, group),
            self.rows,
            round(min(self.attack, 0.99), 3),
            evidence(best, group),
            group.spoof,
            best.match(group),
            state=group.held is not None,
            held=group.held,
            settings=best.settings,
            traits=best.traits,
            dns_name=group.notes.get("dns_name"),
        )


def compete(group: Group, entries: Sequence[Hypothesis]) -> Explained:
    """Let the entries for its cut explain a group."""
    possible = [one for one in entries if one.possible(group)]
    if not (group.context.explains or any(one.kind or one.settles is not None for one in possible)):
        return Explained(group, (), group.packets.rows)
    scored = sorted(
        ((one.odds(group), one.name, one) for one in possible), key=lambda item: (-item[0], item[1])
    )
    odds = [(one, math.exp(score - scored[0][0])) for score, _, one in scored]
    whole = sum(share for _, share in odds)
    ranked = tuple((one, share / whole) for one, share in odds)
    made = Explained(group, ranked, group.packets.rows, _ruled_out(group, entries))
    if made.is_attack and made.best.rows is not own_rows:
        return replace(made, rows=made.best.rows(group))
    return made


def _ruled_out(group: Group, entries: Sequence[Hypothesis]) -> tuple[tuple[Hypothesis, Needs], ...]:
    """Return the explanations that are impossible, and why, where that is asked for."""
    if not group.context.explains:
        return ()
    every = sorted(entries, key=lambda one: one.name)
    failed = ((one, next((need for need in one.needs if not need.met(group)), None)) for one in every)
    return tuple((one, need) for one, need in failed if need is not None)


def evidence(one: Hypothesis, group: Group) -> tuple[str, ...]:
    """Return the sentences of an explanation: what it is about, what speaks for it, what parsers add."""
    signs = [said(says.sentence, group) for says in one.carried(group) if says.sentence]
    lead = (one.lead,) if isinstance(one.lead, str) else one.lead
    return (
        *(said(line, group) for line in lead),
        *signs,
        *(line for detail in one.details for line in detail(group)),
    )
