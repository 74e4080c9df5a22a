"""A group of packets that hypotheses compete for, and the features that are measured of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cached_property
from inspect import getdoc
from typing import Any, TypeVar

from msgspec import Struct, field

from fwtop.analysis.context import AnalysisContext, Normal
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.connections import Held
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows

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
        return " ".join((getdoc(self.measure) or "").split("\n\n")[0].split())

    def __call__(self, group: Group) -> float:
        """Measure a group."""
        return self.measure(group)


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


def noted(name: str, unit: str, meaning: str, *, note: str = "", unknown: float = 0.0) -> Feature:
    """Register what a cut noted of its groups as a feature; NaN, where nobody knows, says nothing."""

    def measure(group: Group) -> float:
        return float(group.notes.get(note or name, unknown))

    measure.__name__, measure.__doc__ = name, meaning
    return feature(unit)(measure)


class Least(Struct, frozen=True):
    """From where on a group may be an attack.

    `floor` names the configured rate, `normal` what to compare with of the baseline. `shaped` says that
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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to explain."""
        return self.held is None and not self.packets.n

    @cached_property
    def spoof(self) -> Spoof:
        """Whether the sources are spoofed."""
        return self.known_spoof or self.context.spoof(
            self.packets, prior=self.spoof_prior, completed=self.completed
        )


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
        return " ".join((getdoc(self.make) or "").split("\n\n")[0].split())

    def __call__(self, context: AnalysisContext) -> list[Group]:
        """Return the groups, none of them empty."""
        found = [group for group in self.make(context) if not group.is_empty]
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
