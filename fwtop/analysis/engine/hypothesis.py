"""What entries are made of: an explanation, what it needs, and what speaks for it."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import numpy as np
from msgspec import Struct

from fwtop.analysis.context import Trait
from fwtop.analysis.engine.group import Cut, Feature, Group
from fwtop.analysis.window.traffic import Rows
from fwtop.model.rule import Match


class Says(Struct, frozen=True):
    """What a feature says, in log-odds: `at_low` up to `low`, `at_high` from `high` on, linear between.

    Where `low` equals `high` it is a step: the value itself still says `at_low`. What isn't known, NaN, says
    nothing. The sentence goes to the operator if the feature speaks for the explanation.
    """

    feature: Feature
    low: float
    at_low: float
    high: float
    at_high: float
    sentence: str = ""

    def about(self, group: Group) -> float:
        """Return the log-odds."""
        value = group[self.feature]
        if isnan(value):
            return 0.0
        if self.low == self.high:
            return self.at_high if value > self.high else self.at_low
        part = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.at_low + part * (self.at_high - self.at_low)


class Needs(Struct, frozen=True):
    """What an explanation takes for granted: a feature between two bounds, both included."""

    feature: Feature
    least: float = -np.inf
    most: float = np.inf

    def met(self, group: Group) -> bool:
        """Check a group."""
        return self.least <= group[self.feature] <= self.most

    @property
    def words(self) -> str:
        """The bounds in words."""
        name = self.feature.words
        if self.feature.unit == "yes or no":
            return name if self.least > 0 else f"not {name}"
        low = f"at least {self.least:g}" if np.isfinite(self.least) else ""
        high = f"at most {self.most:g}" if np.isfinite(self.most) else ""
        return f"{name} {' and '.join(filter(None, (low, high)))}"


CERTAIN = 20.0  # prior log-odds of what its requirements prove: more than attacks add up to


def at_least(feature: Feature, value: float) -> Needs:
    """Require a feature to reach a value."""
    return Needs(feature, least=value)


def at_most(feature: Feature, value: float) -> Needs:
    """Require a feature not to exceed a value."""
    return Needs(feature, most=value)


def is_so(feature: Feature) -> Needs:
    """Require a yes."""
    return Needs(feature, least=1.0)


def is_not(feature: Feature) -> Needs:
    """Require a no."""
    return Needs(feature, most=0.0)


def above(feature: Feature, value: float, odds: float, sentence: str = "") -> Says:
    """Say something above a value, and nothing up to it."""
    return Says(feature, value, 0.0, value, odds, sentence)


def if_so(feature: Feature, odds: float, sentence: str = "") -> Says:
    """Say something for a yes."""
    return Says(feature, 0.5, 0.0, 0.5, odds, sentence)


def own_rows(group: Group) -> Rows:
    """Claim the packets of the group."""
    return group.packets.rows


def no_match(_: Group) -> Match:
    """Return a match for any packet."""
    return Match()


class Hypothesis(Struct, frozen=True, eq=False):
    """One explanation of the groups of a cut: an attack, or, without a kind, what ordinary traffic does.

    Its log-odds are `prior` and what `evidence` says; a need that isn't met rules it out. Sentences are
    templates over features and notes of the group (`engine/words.py`).
    """

    name: str
    of: Cut | None  # None: every group
    prior: float = 0.0
    needs: tuple[Needs, ...] = ()
    evidence: tuple[Says, ...] = ()
    kind: str = ""  # of the attack, as JSON and rules call it; "{service}" comes from the notes
    title: str = ""  # on the screen; the name where it is empty
    lead: str | tuple[str, ...] = ()  # what it is about: the first sentences
    details: tuple[Callable[[Group], list[str]], ...] = ()  # what parsers add, after what decided
    match: Callable[[Group], Match] = no_match  # header fields that all its packets share
    rows: Callable[[Group], Rows] = own_rows  # the packets that it explains, its companions included
    stopped_by: str = ""  # what stops it, in a few words
    settings: tuple[str, ...] = ()  # of servers, that stop it
    traits: Trait = Trait.NONE
    joins: bool = False  # several of its groups are one attack
    settles: tuple[Needs, ...] | None = None  # ordinary traffic: when no weaker proof may take its packets

    @property
    def key(self) -> str:
        """Names the entry in files: its cut, and its name there."""
        return f"{self.of.name if self.of else 'any'}: {self.name}"

    @property
    def proven(self) -> bool:
        """Whether its requirements alone decide; the fit may have shifted its prior a little."""
        return self.prior > CERTAIN / 2

    def possible(self, group: Group) -> bool:
        """Check what it needs, cheapest first as the entry lists it."""
        return all(need.least <= group[need.feature] <= need.most for need in self.needs)

    def settled(self, group: Group) -> bool:
        """Check whether it is ordinary traffic that no weaker proof may take."""
        return self.settles is not None and all(need.met(group) for need in self.settles)

    def odds(self, group: Group) -> float:
        """Return its log-odds for a group that it may explain."""
        return self.prior + sum(one.about(group) for one in self.evidence)

    def carried(self, group: Group) -> list[Says]:
        """Return the evidence that speaks for it, strongest first."""
        said = [(one.about(group), place, one) for place, one in enumerate(self.evidence)]
        return [one for odds, _, one in sorted(said, key=lambda item: (-item[0], item[1])) if odds > 0]
