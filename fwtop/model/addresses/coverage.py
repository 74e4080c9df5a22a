"""Lists of prefixes, short ones as tuples and long ones as rows: what overlaps, and what they cover."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

from fwtop.model.addresses.address import Prefix

if TYPE_CHECKING:
    from fwtop.model.addresses.port_rows import PortRows
    from fwtop.model.addresses.prefix_rows import PrefixRows

# Of IPv6 only 2000::/3 is in use as global unicast (IANA IPv6 address space registry).
SPACE = {4: 1 << 32, 6: 1 << 125}


class Listed(Protocol):
    """A list of prefixes that can be searched; model/addresses/prefix_rows.py does that for a million."""

    def shortest(self, family: int) -> Prefix | None: ...  # noqa: D102
    def overlapping(self, other: Prefix) -> Prefix | None: ...  # noqa: D102


class _Short:
    """A short list; finding an overlap takes one lookup for each prefix length in use."""

    def __init__(self, prefixes: Sequence[Prefix]) -> None:
        self._by_length: dict[tuple[int, int], set[int]] = {}
        for prefix in prefixes:
            self._by_length.setdefault((prefix.family, prefix.length), set()).add(prefix.value)

    def shortest(self, family: int) -> Prefix | None:
        lengths = [length for kind, length in self._by_length if kind == family]
        if not lengths:
            return None
        return Prefix(family, min(self._by_length[family, min(lengths)]), min(lengths))

    def overlapping(self, other: Prefix) -> Prefix | None:
        for (family, length), values in self._by_length.items():
            if family != other.family:
                continue
            if length <= other.length:
                shift = other.bits - length
                value = other.value >> shift << shift
                if value in values:
                    return Prefix(family, value, length)
            else:
                for value in values:
                    if other.contains(Prefix(family, value, length)):
                        return Prefix(family, value, length)
        return None


def is_long(prefixes: Sequence[Prefix]) -> bool:
    """Return whether a list is kept as rows."""
    return not isinstance(prefixes, tuple)


def of_ports(sources: Sequence[Prefix]) -> TypeGuard[PortRows]:
    """Return whether these are entries with ports; loads no numpy where there are none."""
    return hasattr(sources, "single")


def looked_up(sources: Sequence[Prefix]) -> int:
    """Return how many elements a kernel has to hold: each port of an entry is one."""
    return sources.elements if of_ports(sources) else len(sources)


def _rows(prefixes: Sequence[Prefix]) -> PrefixRows:
    """Return a long list as rows: numpy is loaded already then."""
    from fwtop.model.addresses.prefix_rows import PrefixRows

    return PrefixRows.of(prefixes)


def listed(prefixes: Sequence[Prefix]) -> Listed:
    """Return a list that can be asked."""
    return cast(Listed, prefixes) if is_long(prefixes) else _Short(prefixes)


def of_family(prefixes: Sequence[Prefix], family: int, excluded: Sequence[Prefix]) -> Sequence[Prefix]:
    """Return the prefixes of a family, each once, without those that lie within any of `excluded`."""
    if is_long(prefixes):
        return _rows(prefixes).of_family(family).without(excluded)
    kept = [prefix for prefix in prefixes if prefix.family == family]
    return tuple(dict.fromkeys(p for p in kept if not any(item.contains(p) for item in excluded)))


def sizes(prefixes: Sequence[Prefix], family: int) -> int:
    """Return how many addresses a list covers at most: overlaps in a short one count twice."""
    if is_long(prefixes):
        return _rows(prefixes).covered(family)
    return sum(1 << p.bits - p.length for p in prefixes if p.family == family)


def covered(lists: Iterable[Sequence[Prefix]], family: int) -> int:
    """Return how many addresses of a family several lists cover together, each counted once."""
    given = list(lists)
    if any(is_long(item) for item in given):
        rows = _rows(given[0])
        return (rows if len(given) == 1 else rows.union(given)).covered(family)
    total, end = 0, 0
    for prefix in sorted(prefix for item in given for prefix in item if prefix.family == family):
        stop = prefix.value + (1 << prefix.bits - prefix.length)
        if stop > end:
            total += stop - max(prefix.value, end)
            end = stop
    return total


def cut_out(prefixes: Sequence[Prefix], holes: Iterable[Prefix]) -> Sequence[Prefix]:
    """Return a list that covers the same addresses but for those of `holes`."""
    for hole in holes:
        while (hit := listed(prefixes).overlapping(hole)) is not None:
            prefixes = _joined(_outside(prefixes, hit), tuple(_around(hole, hit)))
    return prefixes


def _outside(prefixes: Sequence[Prefix], excluded: Prefix) -> Sequence[Prefix]:
    """Return the prefixes that don't lie within another."""
    if is_long(prefixes):
        return _rows(prefixes).without((excluded,))
    return tuple(prefix for prefix in prefixes if not excluded.contains(prefix))


def _joined(prefixes: Sequence[Prefix], more: tuple[Prefix, ...]) -> Sequence[Prefix]:
    if is_long(prefixes):
        return _rows(prefixes).union((prefixes, more))
    return tuple(dict.fromkeys((*prefixes, *more)))


def _around(hole: Prefix, whole: Prefix) -> Iterator[Prefix]:
    """Yield the prefixes that make up `whole` without `hole`; none where the hole holds all of it."""
    for length in range(whole.length + 1, hole.length + 1):
        shift = hole.bits - length
        yield Prefix(hole.family, (hole.value >> shift ^ 1) << shift, length)
