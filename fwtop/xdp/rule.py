"""Limits of compiled rules, and the numbers of their prefixes.

The loader numbers source prefixes, and the guardian reads their counters by number. A prefix within another
one has no number: its packets count for the wider one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule

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
