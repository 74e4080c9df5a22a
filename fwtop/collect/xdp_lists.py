"""Long lists of prefixes as maps in which a lookup costs the same however long they are.

IPv4 prefixes become a table of two bits for every /24 (4 MiB: none of it listed, all of it, part of it) and,
for the /24s of which a part is listed, 256 bits each, found by their rank (2 MiB say how many come before
each word of the table). Most packets of a flood from other sources cost one load of the table; none costs
more than three. An LPM trie walks up to 24 nodes instead.
IPv6 prefixes are in one hash, asked once for every length in use; a bit for each hash of the first 32
address bits (2 MiB) spares most packets all of that.

A lookup among 1,000,000 prefixes of /20 to /32, nanoseconds a packet beside the same program without it, for
one source again and again and for random ones (all misses of the caches, too); scripts/measure_lists.py on 2
cores of an AMD EPYC, Linux 6.18:

|                    | one source | random | MiB     | seconds to fill |
|--------------------|------------|--------|---------|-----------------|
| LPM trie           |         76 |  1,800 |      30 |             3.3 |
| a hash, by length  |        158 |  1,150 |      80 |             1.5 |
| table, by rank     |          4 |     79 | 6 + 13  |             0.6 |
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fwtop.collect import bpf, bpf_objects
from fwtop.collect.xdp_generate import List4, List6, Lists
from fwtop.collect.xdp_maps import map_array
from fwtop.model.rule import Match, families_of
from fwtop.model.xdp import BUCKETS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fwtop.model.bulk_rows import PrefixRows

_BLOCKS_A_WORD = 32  # two bits each in a word of 64
_PART_BYTES = 32  # a bit for each address of a /24
_HASH_FACTOR = 0x9E3779B1
_FILTER_SHIFT = 8
_SHORTEST_HASHED = 32  # shorter IPv6 prefixes set the filter bit of every /32 in them
_BATCH = 65_536
_NONE, _ALL, _SOME = 0, 1, 2  # of a /24, as in bpf/xdp_lists.h's in_list4
_FULL = 0xFFFFFFFFFFFFFFFF


def build_lists(match: Match, limit: int) -> dict[tuple[str, int], List4 | List6]:
    """Create and fill maps for each side and family with more than `limit` prefixes; raises OSError."""
    from fwtop.model.bulk_rows import PrefixRows

    found: dict[tuple[str, int], List4 | List6] = {}
    try:
        for side, prefixes in (("src", match.sources), ("dst", match.destinations)):
            for family in families_of(prefixes):
                mine = PrefixRows.of(prefixes).of_family(family)
                if len(mine) > limit:
                    found[side, family] = build_list4(mine) if family == 4 else build_list6(mine)
    except OSError:
        close_lists(found)
        raise
    return found


def create_buckets() -> int:
    """Create the map for a limit's buckets: the one that was unused for longest gives way to a new one."""
    return bpf.create_map(
        bpf_objects.MAP_LRU_HASH, "fwtop_buckets", entries=BUCKETS, key_size=24, value_size=8
    )


def descriptors(maps: List4 | List6) -> tuple[int, int]:
    """Return the descriptors of a list's two maps."""
    return (maps.blocks, maps.parts) if isinstance(maps, List4) else (maps.filter, maps.prefixes)


def close_lists(lists: Lists) -> None:
    """Close the maps of lists; what a program or a pin holds lives on."""
    for maps in lists.values():
        for descriptor in descriptors(maps):
            os.close(descriptor)


def build_list4(prefixes: PrefixRows) -> List4:
    """Create and fill the maps of IPv4 prefixes."""
    import numpy as np

    address, length = prefixes.columns()
    value = np.ascontiguousarray(address[:, 12:]).view(">u4").reshape(-1).astype(np.uint32)
    state = np.zeros(1 << 24, np.uint8)
    _fill_spans(state, (value[length < 24] >> 8).astype(np.uint32), 24 - length[length < 24].astype(np.int64))
    state[value[length == 24] >> 8] = _ALL
    longer = (length > 24) & (state[value >> 8] == _NONE)
    keys, bits = _partial_blocks(value[longer], length[longer])
    state[keys] = _SOME
    ranks = np.searchsorted(keys, np.arange(0, 1 << 24, _BLOCKS_A_WORD, dtype=np.uint32)).astype(np.uint32)
    blocks = _create_array("fwtop_blocks", _packed_pairs(state), ranks)
    count = max(len(keys), 1)
    return List4(blocks, _create_array("fwtop_parts", bits, size=count * _PART_BYTES), count)


def _fill_spans(state: NDArray[np.uint8], first: NDArray[np.uint32], bits: NDArray[np.int64]) -> None:
    """Mark 2^bits /24s from each first one on: by size, as a slice of wide rows for all of one size."""
    import numpy as np

    for size in np.unique(bits).tolist():
        state.reshape(-1, 1 << size)[first[bits == size] >> size] = _ALL


def _partial_blocks(
    value: NDArray[np.uint32], length: NDArray[np.uint8]
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Return the /24s of which a part is listed, and for each of them 256 bits in 32 bytes.

    The rows are in order, so that the /24s are without sorting. A prefix is some bits of one 64-bit word, or
    (a /25) two whole words.
    """
    import numpy as np

    block = (value >> 8).astype(np.uint32)
    is_first = np.ones(len(block), np.bool_)
    is_first[1:] = block[1:] != block[:-1]
    keys = block[is_first]
    place = (np.cumsum(is_first) - 1) * 4 + (value >> 6 & 3)
    words = np.zeros(4 * len(keys), np.uint64)
    size = np.uint64(1) << np.minimum(32 - length, 6).astype(np.uint64)
    ones = np.where(length < 27, _FULL, (np.uint64(1) << (size & np.uint64(63))) - np.uint64(1))
    np.bitwise_or.at(words, place, ones << (value & 63).astype(np.uint64))
    words[place[length == 25] + 1] = _FULL
    return keys, words


def _packed_pairs(state: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack four states of two bits into each byte, the first in the lowest bits."""
    quads = state.view("<u4")  # four states of 0 to 2, a byte each: multiply them together and shift
    packed: NDArray[np.uint8] = ((quads | quads >> 6 | quads >> 12 | quads >> 18) & 0xFF).astype("u1")
    return packed


def build_list6(prefixes: PrefixRows) -> List6:
    """Create and fill the maps of IPv6 prefixes."""
    import numpy as np

    address, lengths = prefixes.columns()
    halves = np.ascontiguousarray(address).view(">u8").reshape(-1, 2).astype(np.uint64)
    keys = np.column_stack([halves, lengths.astype(np.uint64)])
    bits = np.zeros(1 << 24, np.bool_)  # all set when the short prefixes would set more than there are
    top = halves[:, 0] >> np.uint64(32)
    bits[_filter_index(top[lengths >= _SHORTEST_HASHED])] = True
    short = np.flatnonzero(lengths < _SHORTEST_HASHED)
    wide = sum(1 << 32 - length for length in lengths[short].tolist())
    if wide > len(bits):
        bits[:] = True
    else:
        for first, length in zip(top[short].tolist(), lengths[short].tolist(), strict=True):
            bits[_filter_index(np.arange(first, first + (1 << 32 - length), dtype=np.uint64))] = True
    sieve = _create_array("fwtop_filter", np.packbits(bits, bitorder="little"))
    table = _create_hash("fwtop_prefix6", 24, 1, len(keys))
    _fill(table, keys, np.ones((len(keys), 1), np.uint8))
    return List6(sieve, table, tuple(np.unique(lengths).tolist()))


def _filter_index(top: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the bit of bpf/xdp_lists.h's may_list6 for the first 32 bits of addresses."""
    import numpy as np

    product = top * np.uint64(_HASH_FACTOR) & np.uint64(0xFFFFFFFF)
    return np.asarray(product >> np.uint64(_FILTER_SHIFT))


def _create_array(name: str, *parts: NDArray[Any], size: int = 0) -> int:
    """Create a map that is one value: the parts one behind the other, by memory and not by system calls."""
    size = size or sum(part.nbytes for part in parts)
    descriptor = bpf.create_map(
        bpf.MAP_ARRAY, name, entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
    )
    with map_array(descriptor, size, writable=True) as mapped:
        at = 0
        for part in parts:
            mapped[at : at + part.nbytes] = part.tobytes()
            at += part.nbytes
    return descriptor


def _create_hash(name: str, key_bytes: int, value_bytes: int, entries: int) -> int:
    return bpf.create_map(
        bpf_objects.MAP_HASH, name, entries=max(entries, 1), key_size=key_bytes, value_size=value_bytes
    )


def _fill(descriptor: int, keys: NDArray[np.generic], values: NDArray[np.generic]) -> None:
    for start in range(0, len(keys), _BATCH):
        part = slice(start, start + _BATCH)
        count = len(keys[part])
        bpf_objects.set_elements(descriptor, keys[part].tobytes(), values[part].tobytes(), count)
