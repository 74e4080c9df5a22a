"""The /24s of a long IPv4 list, which lists.py and uncounted.py put into maps: two bits for each, and what is
listed of those of which a part is.

A module of its own with numpy: the guardian, which needs the limits of lists only, doesn't load it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.kernel import bpf
from fwtop.xdp.maps import map_array

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
