"""What attacks are declared with: cuts and their groups, features, and explanations that compete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cached_property
from inspect import getdoc
from math import isnan
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.connections import Held
from fwtop.analysis.context import AnalysisContext, Normal, Trait
from fwtop.analysis.severity import Room
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows
from fwtop.model.rule import Match
from fwtop.model.traffic.severity import Harm

_CAPITALS = {
    **{name: name.upper() for name in ("dns", "esp", "gre", "http", "icmp", "igmp", "quic", "syn", "tls")},
    **{"acks": "ACKs", "fins": "FINs", "http2": "HTTP/2", "syns": "SYNs"},
}


T = TypeVar("T")


def in_words(name: str) -> str:
    """Write the name of a feature or a cut as sentences do."""
    words = " ".join(_CAPITALS.get(word, word) for word in name.replace("_", " ").split())
    return words.replace("SYN ACKs", "SYN-ACKs")


class Feature(Struct, frozen=True, eq=False):
    """A number that is measured of a group; the docstring of the measure says what it means."""

    measure: Callable[[Group], float]
    unit: str

    @property
    def name(self) -> str:
        """The name of the measure."""
        return self.measure.__name__

    @property
    def words(self) -> str:
        """The name as sentences write it."""
        return in_words(self.name)

    @property
    def meaning(self) -> str:
        """What it measures: the first paragraph of its docstring, in one line."""
        return _first_paragraph(self.measure)

    def __call__(self, group: Group) -> float:
        """Measure a group."""
        return self.measure(group)

    @property
    def yes(self) -> Needs:
        """Require a yes."""
        return Needs(self, least=1.0)

    @property
    def no(self) -> Needs:
        """Require a no."""
        return Needs(self, most=0.0)

    def at_least(self, value: float) -> Needs:
        """Require it to reach a value."""
        return Needs(self, least=value)

    def at_most(self, value: float) -> Needs:
        """Require it not to exceed a value."""
        return Needs(self, most=value)

    def says(self, low: float, at_low: float, high: float, at_high: float, sentence: str = "") -> Says:
        """Say something, in log-odds: `at_low` up to `low`, `at_high` from `high` on, linear between."""
        return Says(self, low, at_low, high, at_high, sentence)

    def above(self, value: float, odds: float, sentence: str = "") -> Says:
        """Say something above a value, and nothing up to it."""
        return Says(self, value, 0.0, value, odds, sentence)

    def if_so(self, odds: float, sentence: str = "") -> Says:
        """Say something for a yes."""
        return Says(self, 0.5, 0.0, 0.5, odds, sentence)


FEATURES: dict[str, Feature] = {}


def feature(unit: str) -> Callable[[Callable[[Group], float]], Feature]:
    """Register a measure of groups as a feature."""

    def register(measure: Callable[[Group], float]) -> Feature:
        made = Feature(measure, unit)
        if made.name in FEATURES:
            raise ValueError(f"two features are called {made.name}")
        FEATURES[made.name] = made
        return made

    return register


def _first_paragraph(function: Callable[..., object]) -> str:
    return " ".join((getdoc(function) or "").split("\n\n")[0].split())


def noted(name: str, unit: str, meaning: str, *, note: str = "", unknown: float = 0.0) -> Feature:
    """Register what a cut noted of its groups as a feature; NaN, where nobody knows, says nothing."""

    return _named(name, unit, meaning, lambda group: float(group.notes.get(note or name, unknown)))


def measured(name: str, unit: str, meaning: str, measure: Callable[[Features], float]) -> Feature:
    """Register what is measured of a group's packets as a feature."""
    return _named(name, unit, meaning, lambda group: float(measure(group.packets)))


def _named(name: str, unit: str, meaning: str, measure: Callable[[Group], float]) -> Feature:
    measure.__name__, measure.__doc__ = name, meaning
    return feature(unit)(measure)


class Least(Struct, frozen=True):
    """The least that may be an attack.

    `floor` names the configured rate, `normal` the part of the baseline to compare with. `shaped` says that
    contents prove the kind, so that less is enough.
    """

    floor: str = "flood_pps"
    normal: Normal = None
    shaped: bool = False
    times: float = 1.0  # of the configured rate


class Group(Struct, eq=False, dict=True):
    """Packets that may have one cause, or connections, and what their cut found out about them."""

    context: AnalysisContext
    packets: Features
    least: Least = Least()
    notes: dict[str, Any] = field(default_factory=dict)  # what the cut knows: a service, parsed requests
    spoof_prior: float = 0.0  # log-odds of spoofing before the sources are looked at
    completed: float = 0.0  # share of the senders that answered this host's answers
    known_spoof: Spoof | None = None  # where the cut knows more than the addresses tell
    otherwise: Callable[[], Group] | None = None  # what to look at if the group is no attack as a whole
    cut: str = ""
    held: Held | None = None  # the connections, if it is a group of these
    order: tuple[float, ...] = ()  # of groups that contest something the greatest is named first
    sure: float = 0.5  # probability from which an attack is named
    values: dict[Feature, float] = field(default_factory=dict)

    def __getitem__(self, wanted: Feature) -> float:
        """Return a feature; each is measured once."""
        value = self.values.get(wanted)
        if value is None:
            value = self.values[wanted] = float(wanted(self))
        return value

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what is worked out once for a group, and noted."""
        if name not in self.notes:
            self.notes[name] = make()
        made: T = self.notes[name]
        return made

    @cached_property
    def spoof(self) -> Spoof:
        """Whether the sources are spoofed."""
        estimate = self.context.spoof
        return self.known_spoof or estimate(self.packets, prior=self.spoof_prior, completed=self.completed)


class Proof(IntEnum):
    """What proves the attacks of a cut, the most certain first."""

    CONTENT = 1  # what packets say
    SOCKETS = 2  # what this host's sockets show of its connections
    PROBES = 3  # what one source asks of many ports
    HANDSHAKES = 4  # connections that are begun or answered, and never used
    REQUESTS = 5  # what is asked on connections, and how fast
    VOLUME = 6  # how many packets there are, and how little they resemble a conversation
    ENDS = 7  # that more connections end than were opened, floods aside
    REST = 8  # that nothing else explains them


class Cut(Struct, frozen=True, eq=False, dict=True):
    """Cuts the unclaimed packets of a window into groups.

    `proof` says what proves its attacks. What is proven by contents isn't judged by volume, so cuts take
    their turn by it. `again` cuts what is left once more after an attack: another may hide in one group.
    The entries of a `complete` cut name all that there may be, so that "nothing unusual" is none of them.
    """

    make: Callable[[AnalysisContext], Iterator[Group]]
    proof: Proof
    again: bool = False
    complete: bool = False
    join: Callable[[AnalysisContext, list[Group], Rows], Group] | None = None  # makes one group of several

    @cached_property
    def name(self) -> str:
        """What it cuts."""
        return self.make.__name__.replace("_", " ").strip()

    @property
    def meaning(self) -> str:
        """Which packets it takes."""
        return _first_paragraph(self.make)

    def __call__(self, context: AnalysisContext) -> list[Group]:
        """Return the groups, none of them empty."""
        found = [group for group in self.make(context) if group.held is not None or group.packets.n]
        for group in found:
            group.cut = self.name
        return found


def cut(
    proof: Proof,
    *,
    again: bool = False,
    complete: bool = False,
    join: Callable[[AnalysisContext, list[Group], Rows], Group] | None = None,
) -> Callable[[Callable[[AnalysisContext], Iterator[Group]]], Cut]:
    """Make a cut of a function that yields groups."""
    return lambda make: Cut(make, proof, again, complete, join)


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


_NEARLY_ALL = 0.98  # of the packets have a value: a rule may ask for it
CERTAIN = 20.0  # prior log-odds of what its requirements prove: more than attacks add up to


def own_rows(group: Group) -> Rows:
    """Claim the packets of the group."""
    return group.packets.rows


def matching(*shared: str, **fields: Any) -> Callable[[Group], Match]:  # noqa: ANN401 - of each field its own
    """Return a match of packets with these header fields, and of those that nearly all of a group share."""

    def match(group: Group) -> Match:
        tops = {name: group.packets.top(name) for name in shared}
        found: dict[str, Any] = {name: top.value for name, top in tops.items() if top.share > _NEARLY_ALL}
        return Match(**fields, **found)

    return match


class Hypothesis(Struct, frozen=True, eq=False):
    """One explanation of the groups of a cut: an attack, or, without a kind, what ordinary traffic does.

    Its log-odds are `prior` and what `evidence` says; a need that isn't met rules it out. Sentences are
    templates over features and notes of the group (`compete.said`).
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
    match: Callable[[Group], Match] = matching()  # header fields that all its packets share
    rows: Callable[[Group], Rows] = own_rows  # the packets that it explains, its companions included
    stopped_by: str = ""  # what stops it, in a few words
    settings: tuple[str, ...] = ()  # of servers, that stop it
    traits: Trait = Trait.NONE
    exhausts: tuple[Room, ...] = ()  # what an attack takes of the host (analysis/severity.py)
    otherwise: Harm = Harm.UNUSUAL  # the class of an attack if it exhausts nothing
    bearable: Feature | None = None  # if so, nothing is exhausted before a resource is near its end
    holds: Feature | None = None  # connections that an attack keeps open
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

    def odds(self, group: Group) -> float:
        """Return its log-odds for a group that it may explain."""
        return self.prior + sum(one.about(group) for one in self.evidence)

    def carried(self, group: Group) -> list[Says]:
        """Return the evidence that speaks for it, strongest first."""
        said = [(one.about(group), place, one) for place, one in enumerate(self.evidence)]
        return [one for odds, _, one in sorted(said, key=lambda item: (-item[0], item[1])) if odds > 0]
