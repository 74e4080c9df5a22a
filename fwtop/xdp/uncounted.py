"""The maps of a list of many millions of IPv4 prefixes, without counters by prefix.

The counters of 25 million prefixes, and what finds them, would take twice the memory of the list itself. The
list is read piece by piece, so that building the maps takes little more memory than they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fwtop.model.addresses.prefix_rows import PrefixRows

_PIECE = 1 << 20  # prefixes


def outer_pieces(prefixes: PrefixRows) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint8]]]:
    """Yield addresses and lengths of the IPv4 prefixes that are in no other one, in order."""
    value, length = prefixes.columns4()
    furthest = -1  # the last address of those before
    for start in range(0, len(value), _PIECE):
        first, short = value[start : start + _PIECE], length[start : start + _PIECE]
        ends = first.astype(np.int64) + (np.int64(1) << 32 - short.astype(np.int64)) - 1
        reach = np.maximum.accumulate(np.append(furthest, ends))
        kept = first > reach[:-1]
        furthest = int(reach[-1])
        yield first[kept], short[kept]


def part_ranks(is_part: NDArray[np.bool_], size: int) -> NDArray[np.uint32]:
    """Return how many partly listed /24s there are before each word of `size` /24s."""
    counts = np.count_nonzero(is_part.reshape(-1, size), axis=1)
    ranks: NDArray[Any] = np.cumsum(counts) - counts
    return ranks.astype(np.uint32)
