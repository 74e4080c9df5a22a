"""Long IPv6 lists: a hash table for each prefix length in use, and the C that looks addresses up.

Tables use linear probing with a bounded distance: a lookup mostly takes one load, and ends at a free place
or at that distance. The hash is a product with a random number (Dietzfelbinger and others, "A reliable
randomized algorithm for the closest-pair problem", 1997), so whoever gets prefixes onto a list can't choose
colliding ones. The code has placeholders for that number and for a table's sizes (CONSTANT of bpf/kernel.h):
a change of the list needs no compiler unless a length comes or goes. A filter of one bit for each hash of the
first 32 address bits spares most packets the tables.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fwtop.xdp.maps import List6, Table6

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fwtop.model.addresses.prefix_rows import PrefixRows

_FILTER_BITS = 24
_FILTER_WORDS = 1 << _FILTER_BITS - 6
_FILTER_FACTOR = 0x9E3779B1  # as in bpf/xdp_lists.h's may_list6
_SHORTEST_HASHED = 32  # shorter prefixes set the filter bit of every /32 in them
_NARROW = 64  # up to this length a key is one word
_LEAST_BITS = 4
_FAR = 32  # maximal probing distance: beyond it, rebuild the table with other random numbers
_TRIES = 4
_FULL = (1 << 64) - 1


def build_list6(prefixes: PrefixRows, first_number: int) -> tuple[list[NDArray[Any]], tuple[Table6, ...]]:
    """Return the contents of a list's map, in consecutive pieces, and the layout of its tables."""
    import numpy as np

    hi, lo, lengths = prefixes.columns6()
    halves = np.column_stack([hi, lo])
    pieces: list[NDArray[Any]] = [_filter(halves[:, 0] >> np.uint64(32), lengths)]
    numbers: list[NDArray[np.uint32]] = []
    tables: list[Table6] = []
    words, places = _FILTER_WORDS, 0
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        table, place, keys = _hashed(halves[rows], length)
        number = np.zeros(len(keys), np.uint32)
        number[place] = rows + first_number
        tables.append(replace(table, first=words, numbers=places))
        pieces.append(keys)
        numbers.append(number)
        words, places = words + keys.size, places + len(keys)
    return [*pieces, *numbers], tuple(replace(one, numbers=2 * words + one.numbers) for one in tables)


def _hashed(mine: NDArray[np.uint64], length: int) -> tuple[Table6, NDArray[np.int64], NDArray[np.uint64]]:
    """Return the table for prefixes of one length, the place of each prefix, and the keys by place.

    In order of their hashes, each prefix goes to the place after its predecessor's, or to its own hash if
    that is greater: the result of linear probing, without a loop.
    """
    import numpy as np

    bits = max(_LEAST_BITS, (2 * len(mine) - 1).bit_length())
    for tried in range(_TRIES):
        seeds = (secrets.randbits(64) | 1, secrets.randbits(64) | 1)
        product = mine[:, 0] * np.uint64(seeds[0])
        if length > _NARROW:
            product += mine[:, 1] * np.uint64(seeds[1])
        home = (product >> np.uint64(64 - bits)).astype(np.int64)
        order = np.argsort(home, kind="stable")
        steps = np.arange(len(mine))
        place = np.empty(len(mine), np.int64)
        place[order] = np.maximum.accumulate(home[order] - steps) + steps
        most = int((place - home).max()) + 1
        if most <= _FAR:
            break
        bits += tried > 0
    empty = _unused(mine, length)
    width = 1 if length <= _NARROW else 2
    keys = np.empty(((1 << bits) + most, width), np.uint64)
    keys[:] = np.array(empty[:width], np.uint64)
    keys[place] = mine[:, :width]
    return Table6(length, 0, 0, bits, most, seeds, empty), place, keys


def _unused(mine: NDArray[np.uint64], length: int) -> tuple[int, int]:
    """Return a key that is none of the prefixes: one with a host bit set, if they have any."""
    if length < _NARROW:
        return 1, 0
    if length not in (_NARROW, 2 * _NARROW):
        return 0, 1
    last = mine[:, 0] if length == _NARROW else mine[mine[:, 0] == 0, 1]
    taken = set(last[last <= len(last)].tolist())
    free = next(value for value in range(len(last) + 1) if value not in taken)
    return (free, 0) if length == _NARROW else (0, free)


def _filter(top: NDArray[np.uint64], lengths: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Set the bits of all /32s that overlap a listed prefix; all bits, if there are too many."""
    import numpy as np

    bits = np.zeros(1 << _FILTER_BITS, np.bool_)
    bits[_filter_bit(top[lengths >= _SHORTEST_HASHED])] = True
    short = np.flatnonzero(lengths < _SHORTEST_HASHED)
    wide = sum(1 << _SHORTEST_HASHED - length for length in lengths[short].tolist())
    if wide > len(bits):
        bits[:] = True
    else:
        for first, length in zip(top[short].tolist(), lengths[short].tolist(), strict=True):
            within = np.arange(first, first + (1 << _SHORTEST_HASHED - length), dtype=np.uint64)
            bits[_filter_bit(within)] = True
    return np.packbits(bits, bitorder="little")


def _filter_bit(top: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the filter bits for the first 32 bits of addresses, as may_list6 does."""
    import numpy as np

    product = top * np.uint64(_FILTER_FACTOR) & np.uint64(0xFFFFFFFF)
    return np.asarray(product >> np.uint64(32 - _FILTER_BITS))


def with_placeholders(table: Table6, number: Callable[[int], int]) -> Table6:
    """Return a table whose values are `number`s of placeholders, as the code below takes them."""
    return replace(
        table,
        first=number(8 * table.first),
        numbers=number(4 * table.numbers),
        bits=number(64 - table.bits),
        most=number(table.most),
        seeds=(number(table.seeds[0]), number(table.seeds[1])),
        empty=(number(table.empty[0]), number(table.empty[1])),
    )


def lookup_lines6(maps: List6) -> list[str]:
    """Return C that looks (hi, lo) up; it returns 0 or 1. Its tables have placeholders."""
    lines = [f"\t\tif (!may_list6(MAP_VALUE({maps.map}), hi))", "\t\t\treturn 0;"]
    for table in maps.tables:
        lines += [f"\t\tif ({_place(maps, table)} != ABSENT)", "\t\t\treturn 1;"]
    return [*lines, "\t\treturn 0;"]


def number_lines6(maps: List6) -> list[str]:
    """Return C that returns the number of the shortest prefix around (hi, lo)."""
    lines = ["\t\tu64 place;", ""]
    for table in maps.tables:
        lines += [f"\t\tplace = {_place(maps, table)};", "\t\tif (place != ABSENT)"]
        values = f"(MAP_VALUE({maps.map}) + CONSTANT({table.numbers}))"
        lines += [f"\t\t\treturn ((u32 *){values})[place];"]
    return [*lines, "\t\treturn 0;"]


def _place(maps: List6, table: Table6) -> str:
    """Return C that looks up the prefix of one length around (hi, lo)."""
    mask = ((1 << table.length) - 1) << 128 - table.length
    high, low = f"(hi & 0x{mask >> 64:x}ULL)", f"(lo & 0x{mask & _FULL:x}ULL)"
    product = f"{high} * CONSTANT({table.seeds[0]})"
    keys = f"(u64 *)(MAP_VALUE({maps.map}) + CONSTANT({table.first}))"
    bounds = f"CONSTANT({table.bits}), CONSTANT({table.most})"
    empty = f"CONSTANT({table.empty[0]})"
    if table.length <= _NARROW:
        return f"place6({keys}, {product}, {bounds}, {high}, {empty})"
    product = f"{product} + {low} * CONSTANT({table.seeds[1]})"
    return f"wide_place6({keys}, {product}, {bounds}, {high}, {low}, {empty}, CONSTANT({table.empty[1]}))"
