"""Times of a capture that can't be: mended and told, so that one of them doesn't stretch it over decades."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fwtop.model.packets import I64, PacketBatch

_YEAR_NS = 366 * 86_400 * 1_000_000_000
_LIFETIME_NS = 50 * _YEAR_NS  # differences beyond would not fit 64 bits when they are added up


def with_possible_times(batches: Iterator[PacketBatch], notes: list[str]) -> Iterator[PacketBatch]:
    """Yield the batches, stray times replaced by those around them; a note at the end says how many.

    Stray is what is more than a year from the middle of its batch (a clock that was not set, a bit that
    flipped), or 50 years from the middle of the first one.
    """
    first: int | None = None
    mended = 0
    for batch in batches:
        time = batch.time_ns
        if not len(time):
            yield batch
            continue
        middle = int(np.partition(time, len(time) // 2)[len(time) // 2]) if _is_wide(time) else int(time[0])
        first = middle if first is None else first
        if abs(middle - first) > _LIFETIME_NS:
            middle = first
        low, high = middle - _YEAR_NS, middle + _YEAR_NS
        stray = (time < max(low, -(1 << 63))) | (time > min(high, (1 << 63) - 1))
        if stray.any():
            mended += int(stray.sum())
            batch = replace(batch, time_ns=np.where(stray, middle, time))  # noqa: PLW2901
        yield batch
    if mended:
        packets = (
            "1 packet has an impossible time" if mended == 1 else f"{mended:,} packets have impossible times"
        )
        notes.append(f"{packets}; those of packets near them were taken")


def _is_wide(time: I64) -> bool:
    return int(time.max()) - int(time.min()) > _YEAR_NS
