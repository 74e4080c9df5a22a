"""Long lists of prefixes as maps in which a lookup costs the same however long they are.

IPv4 prefixes become a table of two bits for every /24 (4 MiB: none of it listed, all of it, part of it) and,
for the /24s of which a part is listed, 256 bits each in a hash. Most packets of a flood from other sources
cost one load of the table; none costs more than one hash lookup. An LPM trie walks up to 24 nodes instead.
IPv6 prefixes are in one hash, asked once for every length in use; a bit for each hash of the first 32
address bits (2 MiB) spares most packets all of that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fwtop.collect import bpf, bpf_objects
from fwtop.collect.xdp_generate import List4, List6, Lists
from fwtop.collect.xdp_maps import map_array
from fwtop.model.address import Prefix
from fwtop.model.rule import Match
from fwtop.model.xdp import BUCKETS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCKS_BYTES = 1 << 22
_FILTER_BYTES = 1 << 21
_HASH_FACTOR = 0x9E3779B1
_FILTER_SHIFT = 8
_SHORTEST_HASHED = 32  # shorter IPv6 prefixes set the filter bit of every /32 in them …
_ALL_FILTERED = 12  # … or all bits, when that would be more than the filter has
_BATCH = 65_536


def build_lists(match: Match, limit: int) -> dict[tuple[str, int], List4 | List6]:
    """Create and fill maps for each side and family with more than `limit` prefixes; raises OSError."""
    found: dict[tuple[str, int], List4 | List6] = {}
    try:
        for side, prefixes in (("src", match.sources), ("dst", match.destinations)):
            for family in (4, 6):
                mine = [prefix for prefix in prefixes if prefix.family == family]
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


def build_list4(prefixes: list[Prefix]) -> List4:
    """Create and fill the maps of IPv4 prefixes."""
    import numpy as np

    value = np.array([prefix.value for prefix in prefixes], np.uint32)
    length = np.array([prefix.length for prefix in prefixes], np.uint8)
    state = np.zeros(1 << 24, np.uint8)
    for short in np.unique(length[length < 24]).tolist():
        for first in (value[length == short] >> 8).tolist():
            state[first : first + (1 << 24 - short)] = 1
    state[value[length == 24] >> 8] = 1
    keys, bits = _partial_blocks(value[length > 24], length[length > 24], state)
    state[keys] = 2
    blocks = _create_array("fwtop_blocks", _BLOCKS_BYTES, _packed_pairs(state))
    parts = _create_hash("fwtop_parts", 4, 32, len(keys))
    _fill(parts, keys, bits)
    return List4(blocks, parts)


def _partial_blocks(
    value: NDArray[np.uint32], length: NDArray[np.uint8], state: NDArray[np.uint8]
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return the /24s of which a part is listed, and for each of them 256 bits in 32 bytes."""
    import numpy as np

    block = value >> 8
    apart = state[block] == 0
    value, length, block = value[apart], length[apart], block[apart]
    keys, place = np.unique(block, return_inverse=True)
    member = np.zeros((len(keys), 256), np.bool_)
    for longer in np.unique(length).tolist():
        rows = np.flatnonzero(length == longer)
        first = (value[rows] & 255).astype(np.int64)
        member[place[rows, None], first[:, None] + np.arange(1 << 32 - longer)] = True
    return keys.astype(np.uint32), np.packbits(member, axis=1, bitorder="little")


def _packed_pairs(state: NDArray[np.uint8]) -> bytes:
    """Pack four states of two bits into each byte, the first in the lowest bits."""
    quads = state.reshape(-1, 4)
    return bytes((quads[:, 0] | quads[:, 1] << 2 | quads[:, 2] << 4 | quads[:, 3] << 6).tobytes())


def build_list6(prefixes: list[Prefix]) -> List6:
    """Create and fill the maps of IPv6 prefixes."""
    import numpy as np

    keys = np.array([(prefix.hi, prefix.lo, prefix.length) for prefix in prefixes], np.uint64)
    keys = np.unique(keys, axis=0)
    lengths = keys[:, 2]
    bits = np.zeros(1 << 24, np.bool_)
    top = (keys[:, 0] >> np.uint64(32)).astype(np.uint64)
    bits[_filter_index(top[lengths >= _SHORTEST_HASHED])] = True
    short = np.flatnonzero(lengths < _SHORTEST_HASHED)
    for first, length in zip(top[short].tolist(), lengths[short].tolist(), strict=True):
        if length < _ALL_FILTERED:
            bits[:] = True
        else:
            bits[_filter_index(np.arange(first, first + (1 << 32 - length), dtype=np.uint64))] = True
    packed = np.packbits(bits, bitorder="little").tobytes()
    sieve = _create_array("fwtop_filter", _FILTER_BYTES, packed)
    table = _create_hash("fwtop_prefix6", 24, 1, len(keys))
    _fill(table, keys, np.ones((len(keys), 1), np.uint8))
    return List6(sieve, table, tuple(sorted({int(length) for length in lengths})))


def _filter_index(top: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the bit of bpf/xdp.h's may_list6 for the first 32 bits of addresses."""
    import numpy as np

    product = top * np.uint64(_HASH_FACTOR) & np.uint64(0xFFFFFFFF)
    return np.asarray(product >> np.uint64(_FILTER_SHIFT))


def _create_array(name: str, size: int, content: bytes) -> int:
    descriptor = bpf.create_map(
        bpf.MAP_ARRAY, name, entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
    )
    with map_array(descriptor, size, writable=True) as mapped:
        mapped[:size] = content
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
