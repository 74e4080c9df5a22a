"""Sizes of compiled rules, and the numbers of their prefixes.

The loader numbers source prefixes, and the guardian reads their counters by number. A prefix within another
one has no number: its packets count for the wider one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fwtop.model.addresses.address import Prefix

COMPILED_PREFIXES = 64  # of a rule become comparisons in the program; longer lists become maps
COUNTED_PREFIXES = 5_000_000  # longer lists have no counters by prefix: see uncounted.py
BUCKETS = 65_536  # source prefixes of a rate limit at a time; 6 MiB of kernel memory


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
