"""A rule in the form in which the loader compiles it: its slot, and the maps of its long lists.

The loader numbers source prefixes, and the guardian reads their counters by number. A prefix within another
one has no number: its packets count for the wider one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, RateLimit

COMPILED_PREFIXES = 64  # of a rule become comparisons in the program; longer lists become maps
COUNTED_PREFIXES = 5_000_000  # longer lists have no counters by prefix: see uncounted.py
BUCKETS = 65_536  # source prefixes of a rate limit at a time; 6 MiB of kernel memory


class ListMaps(Struct, frozen=True, tag=True):
    """A long list in maps: their descriptors, and what the code that looks it up must know."""

    MAPS: ClassVar[tuple[str, ...]] = ("map",)  # fields with descriptors
    SIZES: ClassVar[tuple[str, ...]] = ()  # fields that other lists have other values of, but the same code

    @property
    def descriptors(self) -> dict[str, int]:
        """The descriptors of its maps by field name."""
        return {name: getattr(self, name) for name in self.MAPS}


class List4(ListMaps, frozen=True):
    """A long IPv4 list."""

    MAPS = ("blocks", "parts", "numbers")
    SIZES = ("count", "several")
    blocks: int = 0
    parts: int = 0
    numbers: int = 0
    count: int = 0  # partly listed /24s
    several: int = 0  # those with several prefixes


class UncountedList4(ListMaps, frozen=True):
    """An IPv4 list of many millions."""

    MAPS = ("blocks", "parts", "small")
    SIZES = ("count", "small_count")
    blocks: int = 0
    parts: int = 0
    small: int = 0
    count: int = 0  # partly listed /24s with a bit for each address
    small_count: int = 0  # those in a word of 32 bits: up to four addresses, or /29s


class Table6(Struct, frozen=True):
    """The hash table of IPv6 prefixes of one length, within a List6's map."""

    length: int
    first: int  # offset of the keys, in words of 64 bits: one word for a prefix up to /64, else two
    numbers: int  # offset of the prefixes' numbers, in words of 32 bits
    bits: int  # of the hash
    most: int  # places to probe
    seeds: tuple[int, int]  # multipliers of the hash, for the high and the low half
    empty: tuple[int, int]  # the key of free places: high and low half


class List6(ListMaps, frozen=True):
    """A long IPv6 list: a map, and the tables in it."""

    map: int = 0
    tables: tuple[Table6, ...] = ()


class ListPorts(ListMaps, frozen=True):
    """A list of addresses with ports, of both families (ports.py)."""

    map: int = 0


# By side ("src", "dst") and family; a list with ports has the side "ports" and the family 0.
AnyList = List4 | UncountedList4 | List6 | ListPorts
Lists = Mapping[tuple[str, int], AnyList]
PORTS = ("ports", 0)


class SlotRule(Struct, frozen=True):
    """A rule to compile, and its slot.

    `lists` holds the maps of long lists; they replace the prefixes of that side and family in `match`.
    """

    slot: int
    match: Match
    lists: Lists
    limit: RateLimit | None = None
    buckets: int = 0  # the map of the limit's buckets
    at_tc: bool = False  # at tc ingress only
    counted: int = 0  # source prefixes with a counter
    hits: int = 0  # the map of these counters


def disjoint(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Return the prefixes that lie within no other one, in order of address."""
    found: list[Prefix] = []
    for prefix in sorted(prefixes, key=lambda item: (item.family, item.value, item.length)):
        if not (found and found[-1].contains(prefix)):
            found.append(prefix)
    return found


def numbered(sources: Sequence[Prefix], *, in_maps: bool = False) -> Callable[[int], Prefix]:
    """Return a function from a number to its prefix, which raises IndexError.

    `in_maps`: they are in maps however few they are, as those of a named list.
    """
    if len(sources) <= COMPILED_PREFIXES and not in_maps:
        return disjoint(sources).__getitem__
    from fwtop.model.addresses.prefix_rows import PrefixRows

    rows = PrefixRows.of(sources)
    places = rows.counter_rows()
    return lambda number: rows[int(places[number])]
