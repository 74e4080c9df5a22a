"""Counting in small arrays, of which a window has hundreds: by sorting where a table would be longer.

Keys of 64 bits are compared through tables of hashes: a window's take a tenth of the time of sorting them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.model.traffic.packets import F64, U64

Rows = NDArray[np.intp]
TABLE = 4_096  # of fewer values, sorting is faster than counting in a table
_PLACE_BITS = 32
_SIXTEEN_BITS = 1 << 16
_SHORT = (np.dtype(np.uint8), np.dtype(np.uint16))  # values that number the places of a table
# Odd multipliers of splitmix64 and xxHash. Who chooses keys that collide under all of them gains nothing:
# these are sorted.
_MULTIPLIERS = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)))


def marked(mask: NDArray[np.bool_]) -> int:
    """Count the marks of a mask, several times as fast as its sum."""
    return int(np.count_nonzero(mask))


def part_marked(mask: NDArray[np.bool_]) -> float:
    """Return the part of a mask that is marked, several times as fast as its mean; 0 of an empty one."""
    return marked(mask) / len(mask) if len(mask) else 0.0


def all_alike(values: NDArray[Any]) -> bool:
    """Check for a single value in an array of one value at least."""
    return bool(values[0] == values[-1]) and not marked(values != values[0])


def distinct_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values, ascending, by sorting: numpy would make a hash table, 20 times as slow."""
    ordered = _sorted(values)
    return ordered[run_edges(ordered)[:-1]]


def _sorted(values: NDArray[Any]) -> NDArray[Any]:
    """Sort; values of 16 bits at most by radix, which is what numpy calls stable."""
    return np.sort(values, kind="stable" if values.dtype in _SHORT else None)


def among(values: NDArray[Any], wanted: NDArray[Any] | Collection[int]) -> NDArray[np.bool_]:
    """Mark the whole numbers that are among the wanted ones, as `np.isin` does."""
    known = np.asarray(wanted if isinstance(wanted, np.ndarray) else [*wanted], values.dtype)
    if values.dtype in _SHORT:
        table = np.zeros(np.iinfo(values.dtype).max + 1, np.bool_)
        table[known] = True
        return np.asarray(table.take(values))
    return _keys_among(values.astype(np.uint64), known.astype(np.uint64), _MULTIPLIERS)


def _keys_among(keys: U64, wanted: U64, multipliers: tuple[np.uint64, ...]) -> NDArray[np.bool_]:
    """Mark wanted keys by a table with one of them for each hash; what finds no place takes another table."""
    if not len(wanted):
        return np.zeros(len(keys), np.bool_)
    if not multipliers:
        return np.isin(keys, wanted)
    bits = _hash_bits(len(wanted))
    table, places = np.zeros(1 << bits, np.intp), _hashes(wanted, multipliers[0], bits)
    table[places] = np.arange(len(wanted))
    found = np.asarray(wanted.take(table.take(_hashes(keys, multipliers[0], bits))) == keys)
    displaced = wanted[wanted.take(table.take(places)) != wanted]
    return found | _keys_among(keys, displaced, multipliers[1:]) if len(displaced) else found


def numbered(keys: U64) -> Rows:
    """Number the keys from 0, equal ones alike, in the order in which the last of each comes."""
    every = np.arange(len(keys))
    same, rows, left = every.copy(), every, keys  # `same`: for each key, the row of an equal one
    bits = _hash_bits(len(keys))
    table = np.empty(1 << bits, np.intp)
    for multiplier in _MULTIPLIERS:
        places = _hashes(left, multiplier, bits)
        table[places] = rows
        met = table.take(places)
        same[rows] = met
        displaced = keys.take(met) != left
        rows, left = rows[displaced], left[displaced]
        if not len(rows):
            break
    else:
        _, first, place = np.unique(left, return_index=True, return_inverse=True)
        same[rows] = rows[first][place]
    return (np.cumsum(same == every) - 1).take(same)


def count_distinct(keys: U64) -> int:
    """Return how many distinct keys there are."""
    return int(numbered(keys).max(initial=-1)) + 1


def _hash_bits(keys: int) -> int:
    """Return the bits of hashes in a table that is at most a quarter full."""
    return (4 * keys).bit_length()


def _hashes(keys: U64, multiplier: np.uint64, bits: int) -> Rows:
    return ((keys * multiplier) >> np.uint64(64 - bits)).astype(np.intp)


def in_order(numbers: Rows) -> Rows:
    """Return where the smallest number is, the next, and so on, like numbers in their order (below 2^31).

    A stable `argsort` merges, but numbers of 16 bits by radix; larger ones packed with their places can be
    sorted by vector instructions.
    """
    if len(numbers) and int(numbers.max()) < _SIXTEEN_BITS:
        return np.argsort(numbers.astype(np.uint16), kind="stable")
    packed = (numbers << _PLACE_BITS) | np.arange(len(numbers))
    packed.sort()
    return packed & ((1 << _PLACE_BITS) - 1)


def run_edges(ordered: NDArray[Any]) -> Rows:
    """Return where each run of equal values begins, and the length of the array: (runs + 1,)."""
    n = len(ordered)
    new = np.ones(n + 1, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:n])
    return new.nonzero()[0]


def occurrences(numbers: Rows) -> Rows:
    """Return how often each number that occurs does, in the order of the numbers."""
    if len(numbers) >= TABLE:
        counts = np.bincount(numbers)
        return counts[counts > 0]
    edges = run_edges(np.sort(numbers))
    return edges[1:] - edges[:-1]


def first_of_each(numbers: Rows) -> tuple[Rows, Rows]:
    """Return where each number comes first, and how often it occurs, in the order of the numbers."""
    n = len(numbers)
    if n >= TABLE:
        counts = np.bincount(numbers)
        first = np.empty(len(counts), np.intp)
        first[numbers[::-1]] = np.arange(n - 1, -1, -1)
        return first[counts > 0], counts[counts > 0]
    order = in_order(numbers)
    edges = run_edges(numbers.take(order))
    return order.take(edges[:-1]), edges[1:] - edges[:-1]


def weights_of(values: NDArray[Any], weight: F64) -> tuple[NDArray[np.generic], F64]:
    """Return the distinct values, ascending, and their weights."""
    if len(values) and values.dtype in _SHORT:  # in a table, if it is short
        least = int(values.min())
        if values.dtype == np.uint8 or int(values.max()) - least < max(TABLE, len(values) // 2):
            values = values - values.dtype.type(least)
            distinct: NDArray[np.generic] = np.flatnonzero(np.bincount(values))
            return distinct + least, np.asarray(np.bincount(values, weight), np.float64)[distinct]
    if len(values) and all_alike(values):  # most attacks have one target
        return values[:1], np.array([float(weight.sum())])
    if len(values) and all_alike(weight):  # in a window, one packet in N was sampled
        ordered = _sorted(values)
        edges = run_edges(ordered)
        return ordered[edges[:-1]], np.cumsum(weight)[edges[1:] - edges[:-1] - 1]
    order = np.argsort(values, kind="stable" if values.dtype == np.uint16 else None)
    edges = run_edges(ordered := values[order])
    place = np.empty(len(values), np.intp)
    place[order] = np.repeat(np.arange(len(edges) - 1), edges[1:] - edges[:-1])
    return ordered[edges[:-1]], np.asarray(np.bincount(place, weight), np.float64)
