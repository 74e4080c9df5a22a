"""Scale what windows of time saw up to what the interfaces' own counters say arrived."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.collect.mapped import BYTES, PACKETS, Totals

_LEAST_SEEN = 50  # packets in windows, below which they say nothing about the rest
_CHECKSUM_BYTES = 4  # some drivers count Ethernet's frame check sequence, too
_PLAUSIBLE = 1.5  # bytes a packet by the interface against those seen: above, the counter means another thing


class WindowScale:
    """Knows the last windows, and how the interfaces' bytes compare with those on the wire.

    `frame_bytes` is what the interfaces count for each packet beyond what the programs do.
    """

    def __init__(self) -> None:
        self._seen: Totals | None = None
        self._frame_bytes = 0

    def compare(self, counted: Totals, packets: int, size: int) -> None:
        """Take an interval of which everything was watched, beside what the interfaces counted in it."""
        ours = counted.arrived_packets
        if ours >= _LEAST_SEEN and abs(packets - ours) <= ours // 100:
            excess = size / packets - int(counted.arrived[:, BYTES].sum()) / ours
            self._frame_bytes = _CHECKSUM_BYTES if abs(excess - _CHECKSUM_BYTES) < 1 else 0

    def whole(self, counted: Totals, packets: int, size: int | None) -> Totals:
        """Return what arrived in all; without a window since, go by the last one.

        `packets` and `size` (bytes) are the interfaces'; None where their bytes can't be trusted. Counters
        are read one after the other: where XDP drops nearly all, what is left of `packets` can come out as
        less than was seen, or than nothing. What the windows saw did arrive.
        """
        packets = max(packets, counted.arrived_packets)
        if counted.arrived_packets >= _LEAST_SEEN or self._seen is None:
            self._seen = counted
        seen = self._seen
        factor = packets / max(seen.arrived_packets, 1)
        whole = replace(seen.scaled(factor), lost=counted.lost)
        shown = int(seen.arrived[:, BYTES].sum()) * factor
        if size is None or not shown:
            return whole
        ratio = (size - self._frame_bytes * packets) / shown
        if not 1 / _PLAUSIBLE < ratio < _PLAUSIBLE:
            return whole
        arrived = np.rint(seen.arrived * np.where(np.arange(2) == PACKETS, factor, factor * ratio))
        return replace(whole, arrived=arrived.astype(np.int64))
