"""Hold samples of short windows back until they stand for a time of which enough was watched.

What windows of time saw is scaled up to what arrived, by a ratio. When a reading falls into a window, the
few packets of its beginning would stand for all that arrived since the last window, and the many of its
rest for next to nothing: the same sum, from weights a hundredfold apart, and so estimates of far greater
variance (the design effect of unequal weights, Kish 1992; a ratio estimator wants its strata pooled,
Cochran, "Sampling Techniques", 1977, section 6.11). So strata are pooled until they have seen their share.
Where they can't wait so long, the few samples weigh no more than a few times what is usual, and the next
ones stand for the rest as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_SECONDS = 0.6  # more than the longest pause between windows, less than a screen's patience
_FAIR = 0.5  # of the share of time that is to be watched: windows come at random distances
_HEAVIEST = 3.0  # times what a sample stands for when windows come as they should


class HeldSamples:
    """Samples that wait, and what was seen and what arrived while they did."""

    def __init__(self) -> None:
        self._records: list[NDArray[Any]] = []
        self._seen = 0
        self._arrived = 0
        self._owed = 0  # of these, before: what the last samples didn't stand for
        self._seconds = 0.0

    def add(
        self, records: NDArray[Any], *, seen: int, arrived: int, duty: float, seconds: float
    ) -> tuple[NDArray[Any], float]:
        """Take an interval's records; return those that may go on, and how many packets each stands for.

        `seen` of `arrived` packets passed while watched; `duty` is the share of time that is watched.
        """
        self._records.append(records)
        if duty >= 1.0:  # a debt of the attack is not to be paid by the calm behind it
            self._arrived -= self._owed
            self._owed = 0
        self._seen += seen
        self._arrived += arrived
        self._seconds += seconds
        enough = self._seen >= _FAIR * duty * self._arrived
        if not enough and (self._seconds < LONGEST_SECONDS or not self._seen):
            return records[:0], 1.0
        held = self._records[0] if len(self._records) == 1 else np.concatenate(self._records)
        factor = max(1.0, self._arrived / self._seen) if self._seen else 1.0
        self._owed = 0
        if duty < 1.0 and factor > _HEAVIEST / duty:
            factor = _HEAVIEST / duty
            self._owed = self._arrived - round(self._seen * factor)
        self._records, self._seen, self._arrived, self._seconds = [], 0, self._owed, 0.0
        return held, factor
