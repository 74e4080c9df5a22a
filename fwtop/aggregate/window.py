"""The rows that judgement reads: those of the last seconds, or a uniform choice of all there ever were."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from fwtop.model.packets import PacketBatch

RESERVOIR_ROWS = 100_000
_NAMES = [item.name for item in fields(PacketBatch)]
_SPARE = 1.5  # storage for so many times the present rows


class SlidingRows:
    """Packets in order of arrival, of which the oldest leave: `rows` is a view and costs no copy.

    Storage that was handed out is never written again: new rows go behind it, and when it is full the
    present ones move to new storage.
    """

    def __init__(self) -> None:
        self._store = PacketBatch.empty()
        self._start = 0
        self._end = 0

    def append(self, batch: PacketBatch) -> None:
        """Add packets; their `data` is widened or the storage's is, as needed."""
        if not len(batch):
            return
        width = max(self._store.data.shape[1], batch.data.shape[1])
        if self._end + len(batch) > len(self._store) or width > self._store.data.shape[1]:
            self._move(len(batch), width)
        place = slice(self._end, self._end + len(batch))
        for name in _NAMES[:-1]:
            getattr(self._store, name)[place] = getattr(batch, name)
        self._store.data[place, : batch.data.shape[1]] = batch.data
        self._end += len(batch)

    def _move(self, extra: int, width: int) -> None:
        present = self.rows()
        store = PacketBatch.zeros(int((len(present) + extra) * _SPARE), width)
        for name in _NAMES[:-1]:
            getattr(store, name)[: len(present)] = getattr(present, name)
        store.data[: len(present), : present.data.shape[1]] = present.data
        self._store, self._start, self._end = store, 0, len(present)

    def forget(self, count: int) -> None:
        """Let the oldest `count` rows go."""
        self._start += count

    def rows(self) -> PacketBatch:
        """Return the present rows."""
        return self._store.select(slice(self._start, self._end))


class Reservoir:
    """A uniform random choice of at most `most` packets of any number, their weights scaled up.

    Every row draws a number; the rows with the lowest numbers stay (bottom-k sampling, Cohen and Kaplan
    2007). Order of arrival is kept. Memory is bounded by about 1.5 times `most` rows.
    """

    def __init__(self, most: int = RESERVOIR_ROWS, seed: int | None = None) -> None:
        self._most = most
        self._random = np.random.default_rng(seed)
        self._batches: list[PacketBatch] = []
        self._numbers: list[NDArray[np.float64]] = []
        self._held = 0
        self._limit = 1.0
        self._seen = 0

    def append(self, batch: PacketBatch) -> None:
        """Offer packets."""
        self._seen += len(batch)
        numbers = self._random.random(len(batch))
        if self._limit < 1.0:
            chosen = np.flatnonzero(numbers < self._limit)
            batch, numbers = batch.select(chosen), numbers[chosen]
        if len(batch):
            self._batches.append(batch)
            self._numbers.append(numbers)
            self._held += len(batch)
        if self._held > self._most * 3 // 2:
            self._thin()

    def _thin(self) -> None:
        numbers = np.concatenate(self._numbers)
        self._limit = float(np.partition(numbers, self._most)[self._most])
        kept = numbers < self._limit
        self._batches = [PacketBatch.concat(self._batches).select(kept)]
        self._numbers = [numbers[kept]]
        self._held = len(self._numbers[0])

    def rows(self) -> PacketBatch:
        """Return the chosen rows; the sum of their weights estimates that of all rows."""
        if self._held > self._most:
            self._thin()
        if len(self._batches) > 1:
            self._batches = [PacketBatch.concat(self._batches)]
            self._numbers = [np.concatenate(self._numbers)]
        batch = self._batches[0] if self._batches else PacketBatch.empty()
        if self._held in (0, self._seen):
            return batch
        return replace(batch, weight=batch.weight * (self._seen / self._held))
