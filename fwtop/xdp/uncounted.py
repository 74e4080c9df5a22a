"""The maps of a list of many millions of IPv4 prefixes, without counters by prefix.

The counters of 25 million prefixes, and what finds them, would take several times the memory of the list. In
lists of this length most of the partly listed /24s have a few addresses each (25 million spread evenly: two),
so up to four are kept as the last bytes of the addresses, in 4 bytes instead of 32. Both kinds are found by
rank. The list is read piece by piece, so that building the maps takes little more memory than they have.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from fwtop.xdp.blocks import BLOCKS, BLOCKS_A_WORD, PART_BYTES, Parts, create_array, fill_spans, packed
from fwtop.xdp.maps import map_array
from fwtop.xdp.rule import UncountedList4

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fwtop.model.addresses.prefix_rows import PrefixRows

FEW = 4  # addresses that are kept as bytes


class State(IntEnum):
    """What is listed of a /24, as in bpf/xdp_lists.h."""

    ALL = 1
    PART = 2
    FEW = 3


def build_uncounted4(prefixes: PrefixRows) -> UncountedList4:
    """Create and fill the maps; raises OSError."""
    state = _states(prefixes)
    ranked = {kind: _Ranked(state == kind) for kind in (State.PART, State.FEW)}
    part, few = (max(ranked[kind].count, 1) for kind in (State.PART, State.FEW))
    parts = create_array("fwtop_parts", size=part * PART_BYTES)
    lasts = create_array("fwtop_few", size=few * FEW)
    with (
        map_array(parts, part * PART_BYTES, writable=True) as mapped_parts,
        map_array(lasts, few * FEW, writable=True) as mapped_lasts,
    ):
        words = np.frombuffer(mapped_parts, np.uint64)
        last_bytes = np.frombuffer(mapped_lasts, np.uint8, few * FEW).reshape(-1, FEW)
        filled = (-1, 0)  # the /24 of the last address so far, and how many of its addresses there were
        for value, length in _narrow(prefixes):
            is_few = state[value >> 8] == State.FEW
            found = Parts(value[~is_few], length[~is_few])
            if len(found.blocks):
                at = 4 * ranked[State.PART].place(int(found.blocks[0]))
                words[at : at + 4 * len(found.blocks)] |= found.listed()  # two pieces may share a /24
            filled = _fill_few(last_bytes, ranked[State.FEW], value[is_few], length[is_few], filled)
        del words, last_bytes
    ranks = [ranked[kind].before_words for kind in (State.PART, State.FEW)]
    return UncountedList4(create_array("fwtop_blocks", packed(state), *ranks), parts, lasts, part, few)


def _narrow(prefixes: PrefixRows) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint8]]]:
    """Yield the prefixes that are parts of a /24, piece by piece."""
    for value, length in prefixes.outer_pieces4():
        narrow = length > 24
        yield value[narrow], length[narrow]


def _states(prefixes: PrefixRows) -> NDArray[np.uint8]:
    state = np.zeros(BLOCKS, np.uint8)
    listed = np.zeros(BLOCKS, np.uint8)  # addresses of a /24, FEW + 1 for more
    for value, length in prefixes.outer_pieces4():
        wide = length <= 24
        bits = 24 - length[wide].astype(np.int64)
        fill_spans(state, (value[wide] >> 8).astype(np.uint32), bits, State.ALL)
        if wide.all():
            continue
        block, first = np.unique(value[~wide] >> 8, return_index=True)
        sizes = np.add.reduceat(1 << 32 - length[~wide].astype(np.int64), first)
        listed[block] = np.minimum(listed[block] + sizes, FEW + 1)
    state[listed > 0] = State.FEW
    state[listed > FEW] = State.PART
    return state


class _Ranked:
    """The /24s of one kind: the rank of each is its place in a map."""

    def __init__(self, members: NDArray[np.bool_]) -> None:
        counts = np.count_nonzero(members.reshape(-1, BLOCKS_A_WORD), axis=1)
        ends = np.cumsum(counts)
        self._members = members
        self.before_words: NDArray[np.uint32] = (ends - counts).astype(np.uint32)
        self.count = int(ends[-1])

    def place(self, block: int) -> int:
        """Return the rank of a /24."""
        word = block // BLOCKS_A_WORD
        within = np.count_nonzero(self._members[word * BLOCKS_A_WORD : block])
        return int(self.before_words[word]) + int(within)


def _fill_few(
    last_bytes: NDArray[np.uint8],
    ranked: _Ranked,
    value: NDArray[np.uint32],
    length: NDArray[np.uint8],
    filled: tuple[int, int],
) -> tuple[int, int]:
    """Note the addresses of prefixes in order; the first of a /24 also stands in places that stay free.

    Returns the last /24, and how many of its addresses are noted.
    """
    if not len(value):
        return filled
    sizes = 1 << 32 - length.astype(np.int64)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    address = np.repeat(value, sizes) + within.astype(np.uint32)
    block = address >> 8
    is_first = np.diff(block, prepend=block[0]) != 0
    place = np.cumsum(is_first)
    is_first[0] = True
    index = np.arange(len(address)) - np.flatnonzero(is_first)[place]
    if filled[0] == block[0]:
        index[place == 0] += filled[1]
    place += ranked.place(int(block[0]))
    alone = index == 0
    last_bytes[place[alone]] = (address[alone] & 255).astype(np.uint8)[:, np.newaxis]
    last_bytes[place, index] = (address & 255).astype(np.uint8)
    return int(block[-1]), int(index[-1]) + 1
