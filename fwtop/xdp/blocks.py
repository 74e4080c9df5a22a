"""The /24s of a long IPv4 list as maps: two bits for each, and the addresses of those listed in part.

Lists of many millions have no counters by prefix (`build_uncounted4`): those of 25 million prefixes, and what
finds them, would take several times the memory of the list. Most of their partly listed /24s have a few
addresses each (25 million spread evenly: two), so up to four are kept as the last bytes of the addresses, in
4 bytes instead of 32; and a /24 with nothing narrower than a /29 has a bit for each of its 32. All are found
by rank. The list is read piece by piece, so that building the maps takes little more memory than they have.

Loaded with numpy, so only by the loader, for a long list.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.kernel import bpf
from fwtop.xdp.maps import UncountedList4, map_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fwtop.model.addresses.prefix_rows import PrefixRows


BLOCKS = 1 << 24
BLOCKS_A_WORD = 32  # two bits each, in a word of 64
PART_BYTES = 32  # a bit for each address of a /24
_PIECE = 1 << 20  # prefixes at a time: temporary arrays stay small
_FULL = 0xFFFFFFFFFFFFFFFF


def fill_spans(
    state: NDArray[np.uint8], first: NDArray[np.uint32], bits: NDArray[np.int64], mark: int
) -> None:
    """Mark 2^bits /24s from each first one on, all spans of one size at a time."""
    for size in np.unique(bits).tolist():
        state.reshape(-1, 1 << size)[first[bits == size] >> size] = mark


class Parts:
    """The partly listed /24s, from disjoint prefixes in order."""

    def __init__(self, value: NDArray[np.uint32], length: NDArray[np.uint8]) -> None:
        block = value >> 8
        is_first = np.ones(len(block), np.bool_)
        is_first[1:] = block[1:] != block[:-1]
        self._value, self._length = value, length
        self._first = np.flatnonzero(is_first)  # index of each one's first prefix
        self._part = np.cumsum(is_first, dtype=np.uint32) - np.uint32(1)  # the /24 of each prefix
        self.blocks = block[self._first]
        self.several = np.diff(self._first, append=len(block)) > 1

    def listed(self) -> NDArray[np.uint64]:
        """Return 256 bits for each of them. A prefix covers part of one word, or (a /25) two words."""
        words = np.zeros(4 * len(self.blocks), np.uint64)
        for start in range(0, len(self._value), _PIECE):
            value, length, place = self._piece(start, 4 * self._part[start : start + _PIECE])
            size = np.uint64(1) << np.minimum(32 - length, 6).astype(np.uint64)
            ones = np.where(length < 27, _FULL, (np.uint64(1) << (size & np.uint64(63))) - np.uint64(1))
            np.bitwise_or.at(words, place, ones << (value & 63).astype(np.uint64))
            words[place[length == 25] + 1] = _FULL
        return words

    def _piece(
        self, start: int, first: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.intp]]:
        """Return prefixes from `start` on, and the word of each, `first` being that of its /24."""
        piece = slice(start, start + _PIECE)
        value, length = self._value[piece], self._length[piece]
        return value, length, first.astype(np.intp) + (value >> 6 & 3)

    def numbers(self, first: int) -> NDArray[np.uint32]:
        """Return the number of each one's first prefix, and the index (from 1) of those with several."""
        return np.column_stack([self._first + first, np.cumsum(self.several) * self.several]).astype(
            np.uint32
        )

    def begins(self) -> NDArray[np.uint64]:
        """Return 256 bits for each one with several prefixes, set where a prefix begins."""
        words = np.zeros(4 * int(np.count_nonzero(self.several)), np.uint64)
        rank = np.cumsum(self.several, dtype=np.uint32) - np.uint32(1)
        for start in range(0, len(self._value), _PIECE):
            part = self._part[start : start + _PIECE]
            value, _, place = self._piece(start, 4 * rank[part])
            mine = self.several[part]
            np.bitwise_or.at(words, place[mine], np.uint64(1) << (value[mine] & 63).astype(np.uint64))
        return words


def packed(state: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack four states of two bits into each byte, the first in the lowest bits."""
    quads = state.view("<u4")  # four states of 0 to 3, a byte each: multiply them together and shift
    packed: NDArray[np.uint8] = ((quads | quads >> 6 | quads >> 12 | quads >> 18) & 0xFF).astype("u1")
    return packed


def create_array(name: str, *parts: NDArray[Any], size: int = 0) -> int:
    """Create an array map of one value that consists of the parts, written through mmap."""
    size = size or sum(part.nbytes for part in parts)
    descriptor = bpf.create_map(
        bpf.MAP_ARRAY, name, entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
    )
    with map_array(descriptor, size, writable=True) as mapped:
        at = 0
        for part in parts:
            mapped[at : at + part.nbytes] = part.reshape(-1).view(np.uint8).data
            at += part.nbytes
    return descriptor


FEW = 4  # addresses that are kept as bytes
_WORD_BYTES = 4
_COARSE = 29  # the longest prefixes that a word has bits for


class State(IntEnum):
    """What is listed of a /24, as in bpf/xdp_lists.h."""

    ALL = 1
    PART = 2
    SMALL = 3


def build_uncounted4(prefixes: PrefixRows) -> UncountedList4:
    """Create and fill the maps; raises OSError."""
    state, coarse = _states(prefixes)
    ranked = {kind: _Ranked(state == kind) for kind in (State.PART, State.SMALL)}
    part, small = (max(ranked[kind].count, 1) for kind in (State.PART, State.SMALL))
    kinds = np.packbits(coarse[state == State.SMALL], bitorder="little")  # behind the words: which they are
    words_bytes, kinds_bytes = small * _WORD_BYTES, (small + 31) // 32 * 4
    parts = create_array("fwtop_parts", size=part * PART_BYTES)
    smalls = create_array("fwtop_small", size=words_bytes + kinds_bytes)
    with (
        map_array(parts, part * PART_BYTES, writable=True) as mapped_parts,
        map_array(smalls, words_bytes + kinds_bytes, writable=True) as mapped_smalls,
    ):
        words = np.frombuffer(mapped_parts, np.uint64)
        mapped_smalls[words_bytes : words_bytes + len(kinds)] = kinds.tobytes()
        filling = _Small(ranked[State.SMALL], coarse, np.frombuffer(mapped_smalls, "<u4", small))
        for value, length in _narrow(prefixes):
            is_small = state[value >> 8] == State.SMALL
            found = Parts(value[~is_small], length[~is_small])
            if len(found.blocks):
                at = 4 * ranked[State.PART].place(int(found.blocks[0]))
                words[at : at + 4 * len(found.blocks)] |= found.listed()  # two pieces may share a /24
            filling.add(value[is_small], length[is_small])
        del words, filling
    ranks = [ranked[kind].before_words for kind in (State.PART, State.SMALL)]
    return UncountedList4(create_array("fwtop_blocks", packed(state), *ranks), parts, smalls, part, small)


def _narrow(prefixes: PrefixRows) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint8]]]:
    """Yield the prefixes that are parts of a /24, piece by piece."""
    for value, length in prefixes.outer_pieces4():
        narrow = length > 24
        yield value[narrow], length[narrow]


def _states(prefixes: PrefixRows) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the state of each /24, and whether it has a bit for each /29 if that is SMALL."""
    state = np.zeros(BLOCKS, np.uint8)
    listed = np.zeros(BLOCKS, np.uint8)  # addresses of a /24, FEW + 1 for more
    fine = np.zeros(BLOCKS, np.bool_)  # something in it is narrower than a /29
    for value, length in prefixes.outer_pieces4():
        wide = length <= 24
        bits = 24 - length[wide].astype(np.int64)
        fill_spans(state, (value[wide] >> 8).astype(np.uint32), bits, State.ALL)
        if wide.all():
            continue
        block, first = np.unique(value[~wide] >> 8, return_index=True)
        sizes = np.add.reduceat(1 << 32 - length[~wide].astype(np.int64), first)
        listed[block] = np.minimum(listed[block] + sizes, FEW + 1)
        fine[value[length > _COARSE] >> 8] = True
    state[listed > 0] = State.SMALL
    state[(listed > FEW) & fine] = State.PART
    return state, (listed > FEW) & ~fine


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


class _Small(Struct):
    """The words of 32 bits, filled in the order of the addresses."""

    ranked: _Ranked
    coarse: NDArray[np.bool_]
    words: NDArray[np.uint32]
    last: tuple[int, int] = (-1, 0)  # the place of the last address so far, and how many there were at it

    def add(self, value: NDArray[np.uint32], length: NDArray[np.uint8]) -> None:
        """Note the next prefixes: all that are in such /24s, so that each has the place after the last."""
        if not len(value):
            return
        block = value >> 8
        place = self.ranked.place(int(block[0])) + np.cumsum(np.diff(block, prepend=block[0]) != 0)
        coarse = self.coarse[block]
        self._mark(value[coarse], length[coarse], place[coarse])
        self._note(value[~coarse], length[~coarse], place[~coarse])

    def _mark(self, value: NDArray[np.uint32], length: NDArray[np.uint8], place: NDArray[np.int64]) -> None:
        """Set the bits of the /29s in each prefix."""
        if not len(value):
            return
        ones = (np.uint64(1) << (np.uint64(1) << (_COARSE - length).astype(np.uint64))) - np.uint64(1)
        bits = (ones << (value >> 3 & 31).astype(np.uint64)).astype(np.uint32)
        first = np.flatnonzero(np.diff(place, prepend=-1) != 0)
        self.words[place[first]] |= np.bitwise_or.reduceat(bits, first)  # two pieces may share a /24

    def _note(self, value: NDArray[np.uint32], length: NDArray[np.uint8], place: NDArray[np.int64]) -> None:
        """Note addresses by their last bytes; the first of a /24 also stands in places that stay free."""
        if not len(value):
            return
        sizes = 1 << 32 - length.astype(np.int64)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        last_byte = ((np.repeat(value, sizes) + within.astype(np.uint32)) & 255).astype(np.uint8)
        place = np.repeat(place, sizes)
        is_first = np.diff(place, prepend=-1) != 0
        index = np.arange(len(place)) - np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
        if self.last[0] == place[0]:
            index[place == place[0]] += self.last[1]
        last_bytes = self.words.view(np.uint8).reshape(-1, FEW)
        alone = index == 0
        last_bytes[place[alone]] = last_byte[alone][:, np.newaxis]
        last_bytes[place, index] = last_byte
        self.last = int(place[-1]), int(index[-1]) + 1
