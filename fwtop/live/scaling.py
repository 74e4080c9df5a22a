"""Scale the counts of the duty cycle's windows to the interfaces' own; pool samples for even weights.

What the windows saw is scaled up to what arrived, by a ratio. When a poll falls into a window, the few
packets of the window's beginning would stand for everything since the last window, and the many of its rest
for next to nothing: the same sum, from weights a hundredfold apart, and so estimates of far greater variance
(the design effect of unequal weights, Kish 1992; a ratio estimator wants its strata pooled, Cochran,
"Sampling Techniques", 1977, section 6.11). So samples are pooled until the windows have seen their share of
the traffic. When they can't wait that long, the weight of a sample is bounded, and later samples stand for
the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.live.mapped import BYTES, PACKETS, Totals

_MIN_SEEN = 50  # packets in windows, below which they say nothing about the rest
_CHECKSUM_BYTES = 4  # some drivers count Ethernet's frame check sequence
_PLAUSIBLE = 1.5  # beyond this ratio of its bytes a packet to ours, an interface's byte counter is ignored


class WindowScale:
    """Extrapolates the programs' counts to what the interfaces received.

    In both methods `packets` and `size` (bytes) are the interfaces' counts; `size` is None where it is not
    comparable with bytes on the wire.
    """

    def __init__(self) -> None:
        self._seen: Totals | None = None
        self._deferred = 0  # packets that arrived before anything was seen that shows what they are
        self._frame_bytes = 0  # that interfaces count for each packet and the programs don't

    def learn(self, counted: Totals, packets: int, size: int | None) -> None:
        """Calibrate on an interval that was observed without pauses."""
        ours = counted.arrived_packets
        if ours >= _MIN_SEEN:
            self._seen = counted  # the windows of the next interval may see no packet
        if size is None:
            return
        if ours >= _MIN_SEEN and abs(packets - ours) <= ours // 100:
            excess = size / packets - int(counted.arrived[:, BYTES].sum()) / ours
            self._frame_bytes = _CHECKSUM_BYTES if abs(excess - _CHECKSUM_BYTES) < 1 else 0

    def extrapolate(self, counted: Totals, packets: int, size: int | None) -> Totals:
        """Return the totals of an interval with pauses; if its windows saw too little, use the last that did.

        Counters are read one after the other: where XDP drops nearly everything, `packets` can come out lower
        than what was seen, or below zero. What the windows saw did arrive.
        """
        packets = max(packets, counted.arrived_packets) + self._deferred
        size = None if self._deferred else size
        if counted.arrived_packets >= _MIN_SEEN or (counted.arrived_packets and self._seen is None):
            self._seen = counted
        seen = self._seen
        self._deferred = packets if seen is None else 0
        if seen is None:
            return counted
        factor = packets / seen.arrived_packets
        totals = replace(seen.scaled(factor), lost=counted.lost)
        scaled_bytes = int(seen.arrived[:, BYTES].sum()) * factor
        if size is None or not scaled_bytes:
            return totals
        ratio = (size - self._frame_bytes * packets) / scaled_bytes
        if not 1 / _PLAUSIBLE < ratio < _PLAUSIBLE:
            return totals
        arrived = np.rint(seen.arrived * np.where(np.arange(2) == PACKETS, factor, factor * ratio))
        return replace(totals, arrived=arrived.astype(np.int64))


LONGEST_SECONDS = 0.6  # longer than the longest pause, shorter than a screen may lag
_FAIR = 0.5  # of the expected share: windows come at random intervals
_MAX_WEIGHT = 3.0  # times the weight of a sample when windows come as expected


class SamplePool:
    """Samples that wait until enough of the traffic was seen, with the counts of that time."""

    def __init__(self) -> None:
        self._records: list[NDArray[Any]] = []
        self._seen = 0
        self._arrived = 0
        self._carried = 0  # of `_arrived`: packets that earlier samples did not stand for
        self._seconds = 0.0

    def add(
        self, records: NDArray[Any], *, seen: int, arrived: int, share: float, seconds: float
    ) -> tuple[NDArray[Any], float]:
        """Add an interval's records; return those released, and how many packets each stands for.

        The programs saw `seen` of `arrived` packets; `share` is the share of time to be observed.
        """
        self._records.append(records)
        if share >= 1.0:  # the calm after an attack must not stand for the attack
            self._arrived -= self._carried
            self._carried = 0
        self._seen += seen
        self._arrived += arrived
        self._seconds += seconds
        enough = self._seen >= _FAIR * share * self._arrived
        if not enough and (self._seconds < LONGEST_SECONDS or not self._seen):
            return records[:0], 1.0
        pooled = self._records[0] if len(self._records) == 1 else np.concatenate(self._records)
        weight = max(1.0, self._arrived / self._seen) if self._seen else 1.0
        self._carried = 0
        if share < 1.0 and weight > _MAX_WEIGHT / share:
            weight = _MAX_WEIGHT / share
            self._carried = self._arrived - round(self._seen * weight)
        self._records, self._seen, self._arrived, self._seconds = [], 0, self._carried, 0.0
        return pooled, weight
