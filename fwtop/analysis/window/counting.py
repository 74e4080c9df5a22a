"""Counting in small arrays, of which a window has hundreds: by sorting where a table would be longer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.model.traffic.packets import F64

Rows = NDArray[np.intp]
TABLE = 4_096  # of fewer values, sorting is faster than counting in a table
_PLACE_BITS = 32


def marked(mask: NDArray[np.bool_]) -> int:
    """Count the marks of a mask, several times as fast as its sum."""
    return int(np.count_nonzero(mask))


def distinct_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values, ascending, by sorting: numpy would make a hash table, 20 times as slow."""
    ordered = np.sort(values)
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def among(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the values that are among the wanted ones, as `np.isin` does with such a table."""
    known = distinct_values(wanted)
    if not len(known):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[place] == values)


def in_order(numbers: Rows) -> Rows:
    """Return where the smallest number is, the next, and so on, like numbers in their order (below 2^31).

    A stable `argsort` merges; numbers packed with their places can be sorted by vector instructions.
    """
    packed = (numbers << _PLACE_BITS) | np.arange(len(numbers))
    packed.sort()
    return packed & ((1 << _PLACE_BITS) - 1)


def occurrences(numbers: Rows) -> Rows:
    """Return how often each number that occurs does, in the order of the numbers."""
    if len(numbers) >= TABLE:
        counts = np.bincount(numbers)
        return counts[counts > 0]
    ordered = np.sort(numbers)
    return _lengths(np.flatnonzero(ordered[1:] != ordered[:-1]), len(numbers))


def _lengths(lasts: Rows, n: int) -> Rows:
    """Return how long runs are that end before the last of n values; none of no values."""
    edges = np.empty(len(lasts) + 2, np.intp)
    edges[0], edges[1:-1], edges[-1] = -1, lasts, n - 1
    return edges[1:] - edges[:-1] if n else edges[:0]


def first_of_each(numbers: Rows) -> tuple[Rows, Rows]:
    """Return where each number comes first, and how often it occurs, in the order of the numbers."""
    n = len(numbers)
    if n >= TABLE:
        counts = np.bincount(numbers)
        first = np.empty(len(counts), np.intp)
        first[numbers[::-1]] = np.arange(n - 1, -1, -1)
        return first[counts > 0], counts[counts > 0]
    order = in_order(numbers)
    ordered = numbers[order]
    lasts = np.flatnonzero(ordered[1:] != ordered[:-1])
    counts = _lengths(lasts, n)
    return order[np.cumsum(counts) - counts], counts


def weights_of(values: NDArray[Any], weight: F64) -> tuple[NDArray[np.generic], F64]:
    """Return the distinct values, ascending, and their weights."""
    if len(values) and values.dtype in (np.uint8, np.uint16):  # in a table, if it is short
        least = int(values.min())
        if values.dtype == np.uint8 or int(values.max()) - least < TABLE + 16 * len(values):
            values = values - values.dtype.type(least)
            distinct: NDArray[np.generic] = np.flatnonzero(np.bincount(values))
            return distinct + least, np.asarray(np.bincount(values, weight), np.float64)[distinct]
    if len(values) and bool((values == values[0]).all()):  # most attacks have one target
        return values[:1], np.array([float(weight.sum())])
    if len(values) and bool((weight == weight[0]).all()):  # in a window, one packet in N was sampled
        ordered = np.sort(values)
        counts = _lengths(np.flatnonzero(ordered[1:] != ordered[:-1]), len(values))
        return ordered[np.cumsum(counts) - 1], np.cumsum(weight)[counts - 1]
    order = np.argsort(values, kind="stable" if values.dtype == np.uint16 else None)
    ordered = values[order]
    new = np.ones(len(values), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    place = np.empty(len(values), np.intp)
    place[order] = np.cumsum(new) - 1
    return ordered[new], np.asarray(np.bincount(place, weight), np.float64)
