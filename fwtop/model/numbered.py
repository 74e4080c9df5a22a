"""The number of each prefix in a compiled rule: that of the counter for what it hit.

The loader that builds the lists and the guardian that reads the counters must agree on it. A prefix that
lies within another one has none: its packets are the wider one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fwtop.model.address import Prefix
from fwtop.model.xdp import COMPILED_PREFIXES


def apart(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Leave out prefixes that lie within another; the rest in order of their addresses."""
    found: list[Prefix] = []
    for prefix in sorted(prefixes, key=lambda item: (item.family, item.value, item.length)):
        if not (found and found[-1].contains(prefix)):
            found.append(prefix)
    return found


def numbered(sources: Sequence[Prefix]) -> Callable[[int], Prefix]:
    """Return what gives the prefix of a number; raises IndexError where there is none."""
    if len(sources) <= COMPILED_PREFIXES:
        return apart(sources).__getitem__
    from fwtop.model.bulk_rows import PrefixRows

    rows = PrefixRows.of(sources)
    places = rows.counted()
    return lambda number: rows[int(places[number])]
