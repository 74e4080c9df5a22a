"""The rows that judgement reads: those of the last seconds, or a uniform choice of all there ever were."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from fwtop.model.packets import PacketBatch

RESERVOIR_ROWS = 100_000
_NAMES = [item.name for item in fields(PacketBatch)]
_SPARE = 2.0  # storage for so many times the present rows


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
        """Add packets; of `data` only the columns in which any of them has bytes are kept."""
        if not len(batch):
            return
        used = (int(batch.captured.max()) + 7) & ~7
        data = batch.data[:, : min(used, batch.data.shape[1])]
        width = max(self._store.data.shape[1], data.shape[1])
        if self._end + len(batch) > len(self._store) or width > self._store.data.shape[1]:
            self._move(len(batch), width)
        place = slice(self._end, self._end + len(batch))
        for name in _NAMES[:-1]:
            getattr(self._store, name)[place] = getattr(batch, name)
        self._store.data[place, : data.shape[1]] = data
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

    Algorithm R (Vitter 1985), a batch at a time: the t-th packet takes a random place of t, and stays out
    where that is not one of the `most`.
    """

    def __init__(self, most: int = RESERVOIR_ROWS, seed: int | None = None) -> None:
        self._most = most
        self._random = np.random.default_rng(seed)
        self._store = PacketBatch.empty()
        self._number = np.zeros(most, np.int64)  # which packet holds a place: rows come out in this order
        self._seen = 0
        self._lent = False  # somebody has a view of the storage: it must not be written again

    def append(self, batch: PacketBatch) -> None:
        """Offer packets."""
        if self._seen < self._most:  # there is room for all of these
            first = batch.select(slice(0, self._most - self._seen))
            place = slice(self._seen, self._seen + len(first))
            self._grow(place.stop, batch.data.shape[1])
            self._write(place, first)
            self._number[place] = np.arange(place.start, place.stop)
            self._seen += len(first)
            batch = batch.select(slice(len(first), None))
        if len(batch):
            self._replace(batch)

    def _replace(self, batch: PacketBatch) -> None:
        number = self._seen + np.arange(len(batch))
        place = (self._random.random(len(batch)) * (number + 1)).astype(np.int64)
        self._seen += len(batch)
        taken = np.flatnonzero(place < self._most)[::-1]
        _, last = np.unique(place[taken], return_index=True)  # of those for one place the latest holds it
        rows = taken[last]
        if len(rows):
            if self._lent:
                self._store, self._lent = self._store.select(np.arange(self._most)), False
            self._grow(self._most, batch.data.shape[1])
            self._write(place[rows], batch.select(rows))
            self._number[place[rows]] = number[rows]

    def _grow(self, rows: int, width: int) -> None:
        old = self._store
        if rows <= len(old) and width <= old.data.shape[1]:
            return
        rows = len(old) if rows <= len(old) else min(2 * rows, self._most)
        self._store = PacketBatch.zeros(rows, max(width, old.data.shape[1]))
        self._write(slice(0, len(old)), old)

    def _write(self, place: NDArray[np.int64] | slice, rows: PacketBatch) -> None:
        for name in _NAMES[:-1]:
            getattr(self._store, name)[place] = getattr(rows, name)
        self._store.data[place, : rows.data.shape[1]] = rows.data
        if rows.data.shape[1] < self._store.data.shape[1]:
            self._store.data[place, rows.data.shape[1] :] = 0

    def rows(self) -> PacketBatch:
        """Return the chosen rows; the sum of their weights estimates that of all rows."""
        if self._seen <= self._most:
            self._lent = True
            return self._store.select(slice(0, self._seen))
        batch = self._store.select(np.argsort(self._number))
        return replace(batch, weight=batch.weight * (self._seen / self._most))
