"""The maps of a list of many millions of IPv4 prefixes, without counters by prefix.

The counters of 25 million prefixes, and what finds them, would take twice the memory of the list itself. The
list is read piece by piece, so that building the maps takes little more memory than they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def part_ranks(is_part: NDArray[np.bool_], size: int) -> NDArray[np.uint32]:
    """Return how many partly listed /24s there are before each word of `size` /24s."""
    counts = np.count_nonzero(is_part.reshape(-1, size), axis=1)
    ranks: NDArray[Any] = np.cumsum(counts) - counts
    return ranks.astype(np.uint32)
