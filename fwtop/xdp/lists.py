"""Long lists of prefixes as maps with constant lookup cost, however long they are.

IPv4 prefixes become a table of two bits for every /24 (4 MiB: nothing, everything or a part of it is listed)
and, for partly listed /24s, 256 bits each, found by rank (2 MiB hold the number of such /24s before each word
of the table). For unlisted sources, most lookups take one load of the table; none takes more than three. An
LPM trie would walk up to 24 nodes. IPv6: see ipv6_lists.py.

Each prefix has a counter of dropped packets, which is touched only when a packet is dropped. It is found by
the prefix's number, which is a rank, too: of the /24 in which the prefix begins, or of its first address
within it.

Lookups in 1,000,000 prefixes of mixed lengths, in nanoseconds a packet more than the same program without:
for one unlisted source, for random ones (all cache misses), for IPv6 sources near listed ones (in the same
/32s), and for listed ones; scripts/measure_lists.py on 2 cores of an AMD EPYC, Linux 6.18. Memory is that of
the list and of its counters:

| IPv4              | one | random |        | listed | MiB      | seconds to fill |
|-------------------|-----|--------|--------|--------|----------|-----------------|
| LPM trie          | 178 |  1,600 |        |  1,700 | 30       |             1.6 |
| a hash, by length | 246 |    940 |        |  1,000 | 80       |             0.9 |
| table, by rank    |   4 |     60 |        |     91 | 19       |                 |
| the same, counted |   4 |    102 |        |    222 | 24 + 7   |             0.4 |
| **IPv6**          |     |        | **near** |      |          |                 |
| LPM trie          | 141 |    332 |  1,600 |  1,700 | 41       |             1.2 |
| a hash, by length | 238 |  1,170 |  1,000 |    900 | 96       |             0.6 |
| own hash, filter  |   7 |     31 |    208 |    145 | 37       |                 |
| the same, counted |   7 |     57 |    409 |    470 | 37 + 8   |             0.4 |

(Of the random IPv4 sources one in eight is listed, and is counted.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fwtop.kernel import bpf
from fwtop.model.rule import Match, families_of
from fwtop.xdp.ipv6_lists import build_list6
from fwtop.xdp.maps import PENDING_BYTES, map_array, possible_cpus
from fwtop.xdp.ports import build_ports
from fwtop.xdp.rule import BUCKETS, COUNTED_PREFIXES, PORTS, AnyList, List4, List6, ListPorts, Lists

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fwtop.model.addresses.prefix_rows import PrefixRows

_BLOCKS_A_WORD = 32  # two bits each, in a word of 64
_PART_BYTES = 32  # a bit for each address of a /24
_ALL_FIRST, _PART, _ALL_NEXT = 1, 2, 3  # of a /24, as in bpf/xdp_lists.h
_FULL = 0xFFFFFFFFFFFFFFFF


def build_lists(match: Match, limit: int, families: Sequence[int] = ()) -> tuple[Lists, int]:
    """Create and fill maps for each side and family with more than `limit` prefixes; raises OSError.

    Sources of `families` get them even if there are none. Also returns how many source prefixes have a
    number: none of more than COUNTED_PREFIXES, and none with ports.
    """
    from fwtop.model.addresses.port_rows import PortRows
    from fwtop.model.addresses.prefix_rows import PrefixRows

    if isinstance(match.sources, PortRows):
        return {PORTS: build_ports(match.sources)}, 0
    found: dict[tuple[str, int], AnyList] = {}
    numbers = 0
    try:
        for side, prefixes in (("dst", match.destinations), ("src", match.sources)):
            rows = PrefixRows.of(prefixes)
            counted = rows.counter_rows() if len(rows) <= COUNTED_PREFIXES else None
            numbers = len(counted) if counted is not None else 0
            for family in families_of(prefixes) | (set(families) if side == "src" else set()):
                mine = rows.of_family(family)
                if len(mine) <= limit and not (side == "src" and family in families):
                    continue
                if family == 4:
                    found[side, family] = (
                        _build4(mine, counted) if counted is not None else _build_uncounted4(mine)
                    )
                else:
                    pieces, tables = build_list6(mine, max(numbers - len(mine), 0))
                    found[side, family] = List6(_create_array("fwtop_list6", *pieces), tables)
    except OSError:
        close_lists(found)
        raise
    return found, numbers


def create_buckets() -> int:
    """Create the map for a limit's buckets; a new bucket evicts the least recently used one."""
    return bpf.create_map(bpf.MAP_LRU_HASH, "fwtop_buckets", entries=BUCKETS, key_size=24, value_size=8)


def create_hits(counted: int) -> int:
    """Create the map of counters: first those pending on each CPU (bpf/xdp_lists.h), then one a prefix."""
    size = possible_cpus() * PENDING_BYTES + 8 * counted
    return bpf.create_map(
        bpf.MAP_ARRAY, "fwtop_hits", entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
    )


def descriptors(maps: AnyList) -> dict[str, int]:
    """Return the descriptors of a list's maps by field name."""
    if isinstance(maps, List6 | ListPorts):
        return {"map": maps.map}
    return {"blocks": maps.blocks, "parts": maps.parts, "numbers": maps.numbers}


def with_descriptors(maps: AnyList, named: dict[str, int]) -> AnyList:
    """Return the same list with other descriptors for its maps."""
    if isinstance(maps, List6 | ListPorts):
        return replace(maps, map=named["map"])
    return replace(maps, blocks=named["blocks"], parts=named["parts"], numbers=named["numbers"])


def close_lists(lists: Lists) -> None:
    """Close the maps of lists; those in use by a program or a pin live on."""
    for maps in lists.values():
        for descriptor in descriptors(maps).values():
            os.close(descriptor)


def _build4(prefixes: PrefixRows, counted: NDArray[np.int32]) -> List4:
    """Create and fill the maps of IPv4 prefixes; `counted` is PrefixRows.counted of them."""
    import numpy as np

    value, length = prefixes.columns4()
    counted = counted[counted < len(prefixes)]
    value, length = value[counted], length[counted]
    wholes = int(np.count_nonzero(length <= 24))
    state = np.zeros(1 << 24, np.uint8)
    first = (value[:wholes] >> 8).astype(np.uint32)
    _fill_spans(state, first, 24 - length[:wholes].astype(np.int64))
    state[first] = _ALL_FIRST
    parts = _Parts(value[wholes:], length[wholes:])
    state[parts.blocks] = _PART
    words = np.arange(0, 1 << 24, _BLOCKS_A_WORD, dtype=np.uint32)
    ranks = [np.searchsorted(blocks, words).astype(np.uint32) for blocks in (parts.blocks, first)]
    numbers = (ranks[1], parts.numbers(wholes), parts.begins())
    count = max(len(parts.blocks), 1)
    return List4(
        _create_array("fwtop_blocks", _packed_pairs(state), ranks[0]),
        _create_array("fwtop_parts", parts.listed(), size=count * _PART_BYTES),
        _create_array("fwtop_numbers", *numbers, size=4 * len(words) + 8 * count + numbers[2].nbytes),
        count,
        int(np.count_nonzero(parts.several)),
    )


def _build_uncounted4(prefixes: PrefixRows) -> List4:
    """Create and fill the maps of IPv4 prefixes without numbers, reading them piece by piece twice."""
    import numpy as np

    from fwtop.xdp.uncounted import part_ranks

    state = np.zeros(1 << 24, np.uint8)
    for value, length in prefixes.outer_pieces4():
        wide = length <= 24
        _fill_spans(state, (value[wide] >> 8).astype(np.uint32), 24 - length[wide].astype(np.int64))
        state[value[~wide] >> 8] = _PART
    is_part = state == _PART
    ranks = part_ranks(is_part, _BLOCKS_A_WORD)
    count = max(int(np.count_nonzero(is_part)), 1)
    listed = _create_array("fwtop_parts", size=count * _PART_BYTES)
    with map_array(listed, count * _PART_BYTES, writable=True) as mapped:
        words = np.frombuffer(mapped, np.uint64)
        for value, length in prefixes.outer_pieces4():
            parts = _Parts(value[length > 24], length[length > 24])
            if len(parts.blocks):
                first = int(parts.blocks[0])  # what came before it in its word is counted here
                within = np.count_nonzero(is_part[first - first % _BLOCKS_A_WORD : first])
                at = 4 * (int(ranks[first // _BLOCKS_A_WORD]) + int(within))
                words[at : at + 4 * len(parts.blocks)] |= parts.listed()  # two pieces may share a /24
        del words
    blocks = _create_array("fwtop_blocks", _packed_pairs(state), ranks)
    return List4(blocks, listed, _create_array("fwtop_numbers", size=8), count, 0)


def _fill_spans(state: NDArray[np.uint8], first: NDArray[np.uint32], bits: NDArray[np.int64]) -> None:
    """Mark 2^bits /24s from each first one on, all spans of one size at a time."""
    import numpy as np

    for size in np.unique(bits).tolist():
        state.reshape(-1, 1 << size)[first[bits == size] >> size] = _ALL_NEXT


class _Parts:
    """The partly listed /24s, from disjoint prefixes in order."""

    def __init__(self, value: NDArray[np.uint32], length: NDArray[np.uint8]) -> None:
        import numpy as np

        block = value >> 8
        is_first = np.ones(len(block), np.bool_)
        is_first[1:] = block[1:] != block[:-1]
        self._value, self._length = value, length
        self._first = np.flatnonzero(is_first)  # index of each one's first prefix
        self._part = np.cumsum(is_first) - 1  # the /24 of each prefix
        self.blocks = block[self._first]
        self.several = np.diff(self._first, append=len(block)) > 1

    def listed(self) -> NDArray[np.uint64]:
        """Return 256 bits for each of them. A prefix covers part of one word, or (a /25) two words."""
        import numpy as np

        length = self._length
        place = self._part * 4 + (self._value >> 6 & 3)
        words = np.zeros(4 * len(self.blocks), np.uint64)
        size = np.uint64(1) << np.minimum(32 - length, 6).astype(np.uint64)
        ones = np.where(length < 27, _FULL, (np.uint64(1) << (size & np.uint64(63))) - np.uint64(1))
        np.bitwise_or.at(words, place, ones << (self._value & 63).astype(np.uint64))
        words[place[length == 25] + 1] = _FULL
        return words

    def numbers(self, first: int) -> NDArray[np.uint32]:
        """Return the number of each one's first prefix, and the index (from 1) of those with several."""
        import numpy as np

        return np.column_stack([self._first + first, np.cumsum(self.several) * self.several]).astype(
            np.uint32
        )

    def begins(self) -> NDArray[np.uint64]:
        """Return 256 bits for each one with several prefixes, set where a prefix begins."""
        import numpy as np

        mine = self.several[self._part]
        value = self._value[mine]
        place = (np.cumsum(self.several) - 1)[self._part[mine]] * 4 + (value >> 6 & 3)
        words = np.zeros(4 * int(np.count_nonzero(self.several)), np.uint64)
        np.bitwise_or.at(words, place, np.uint64(1) << (value & 63).astype(np.uint64))
        return words


def _packed_pairs(state: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack four states of two bits into each byte, the first in the lowest bits."""
    quads = state.view("<u4")  # four states of 0 to 3, a byte each: multiply them together and shift
    packed: NDArray[np.uint8] = ((quads | quads >> 6 | quads >> 12 | quads >> 18) & 0xFF).astype("u1")
    return packed


def _create_array(name: str, *parts: NDArray[Any], size: int = 0) -> int:
    """Create an array map of one value that consists of the parts, written through mmap."""
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
