"""A rule as it is compiled: its conditions, and the maps that it asks and counts in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fwtop.model.rule import Match, RateLimit


@dataclass(frozen=True, slots=True)
class List4:
    """A long IPv4 list: its maps by descriptor."""

    blocks: int
    parts: int
    numbers: int
    count: int  # of the /24s that are listed in part
    several: int  # of those among them with several prefixes


@dataclass(frozen=True, slots=True)
class Table6:
    """The IPv6 prefixes of one length, in places that a hash gives, within a List6's map."""

    length: int
    first: int  # of the words of 64 bits: one a prefix up to /64, or two
    numbers: int  # of the words of 32 bits: the first place's number
    bits: int  # of the hash
    most: int  # places that a prefix may take from its hash on
    seeds: tuple[int, int]  # multipliers of the hash, for the high and the low half
    empty: tuple[int, int]  # what no prefix is, in places that are free: high and low half


@dataclass(frozen=True, slots=True)
class List6:
    """A long IPv6 list: one map by descriptor, and what lies where in it."""

    map: int
    tables: tuple[Table6, ...]


Lists = Mapping[tuple[str, int], "List4 | List6"]  # by side ("src", "dst") and family


@dataclass(frozen=True, slots=True)
class SlotRule:
    """A rule in its slot. `lists` has the maps of prefixes that are too many to compile; they take the place
    of those of that side and family in `match`, which may leave them out.
    """

    slot: int
    match: Match
    lists: Lists
    limit: RateLimit | None = None
    buckets: int = 0  # the map that keeps the limit's
    at_tc: bool = False  # not for XDP
    counted: int = 0  # source prefixes with a counter each (model/numbered.py)
    hits: int = 0  # the map that has the counters
