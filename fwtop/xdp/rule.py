"""Limits of compiled rules, and the form in which they are compiled.

The loader numbers source prefixes, and the guardian reads their counters by number. A prefix within another
one has no number: its packets count for the wider one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match, RateLimit, Rule

COMPILED_PREFIXES = 64  # of a rule become comparisons in the program; longer lists become maps
COUNTED_PREFIXES = 5_000_000  # longer lists have no counters by prefix: see uncounted.py
MAX_DESTINATIONS = 1024
SEARCHED_BYTES = 128  # of the payload, for a match without an offset
BUCKETS = 65_536  # source prefixes of a rate limit at a time; 6 MiB of kernel memory
FURTHEST_BYTE = 2048  # of the payload: the end of a match with an offset


def check_xdp(rule: Rule) -> None:
    """Raise FwtopError (code 2) for a rule of kind XDP or TC that can't be compiled."""
    if len(rule.match.destinations) > MAX_DESTINATIONS:
        line = f"an XDP rule takes up to {MAX_DESTINATIONS} destinations; nothing was installed"
        raise FwtopError(line, 2)
    for item in rule.match.payload:
        if not item.data or (item.offset or 0) < 0:
            line = "a payload match needs bytes, and an offset of 0 or more"
            raise FwtopError(f"{line}; nothing was installed", 2)
        if item.offset is None and len(item.data) > SEARCHED_BYTES:
            line = f"XDP searches the first {SEARCHED_BYTES} bytes of the payload; this string is longer"
            raise FwtopError(f"{line}; nothing was installed", 2)
        if item.offset is not None and item.offset + len(item.data) > FURTHEST_BYTE:
            raise FwtopError(f"XDP reads the payload up to byte {FURTHEST_BYTE}; nothing was installed", 2)


@dataclass(frozen=True, slots=True)
class List4:
    """A long IPv4 list: descriptors of its maps."""

    blocks: int
    parts: int
    numbers: int
    count: int  # partly listed /24s
    several: int  # those with several prefixes


@dataclass(frozen=True, slots=True)
class UncountedList4:
    """An IPv4 list of many millions: descriptors of its maps."""

    blocks: int
    parts: int
    small: int
    count: int  # partly listed /24s with a bit for each address
    small_count: int  # those in a word of 32 bits: up to four addresses, or /29s


@dataclass(frozen=True, slots=True)
class Table6:
    """The hash table of IPv6 prefixes of one length, within a List6's map."""

    length: int
    first: int  # offset of the keys, in words of 64 bits: one word for a prefix up to /64, else two
    numbers: int  # offset of the prefixes' numbers, in words of 32 bits
    bits: int  # of the hash
    most: int  # places to probe
    seeds: tuple[int, int]  # multipliers of the hash, for the high and the low half
    empty: tuple[int, int]  # the key of free places: high and low half


@dataclass(frozen=True, slots=True)
class List6:
    """A long IPv6 list: the descriptor of its map, and the tables in it."""

    map: int
    tables: tuple[Table6, ...]


@dataclass(frozen=True, slots=True)
class ListPorts:
    """A list of addresses with ports, of both families: the descriptor of its map (ports.py)."""

    map: int


# By side ("src", "dst") and family; a list with ports has the side "ports" and the family 0.
AnyList = List4 | UncountedList4 | List6 | ListPorts
Lists = Mapping[tuple[str, int], AnyList]
PORTS = ("ports", 0)


@dataclass(frozen=True, slots=True)
class SlotRule:
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
