"""The packets of a window, and the exact counters of several intervals added up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.model.traffic.counters import ConntrackSample, Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import PacketBatch

RESERVOIR_ROWS = 100_000
_NAMES = PacketBatch.__struct_fields__
_SPARE = 1.34  # times the present rows are allocated


class SlidingRows:
    """A queue of packets in order of arrival; `rows` is a view without a copy.

    Storage is never overwritten after a view of it was returned: new rows are appended, and when it is full
    the present ones move to new storage. The first rows after none are kept as they came, without a copy.
    """

    def __init__(self) -> None:
        self._store = PacketBatch.empty()
        self._start = 0
        self._end = 0
        self._rows: PacketBatch | None = None  # the present rows, if asked for since they changed

    def append(self, batch: PacketBatch) -> None:
        """Append packets; keep only the columns of `data` that hold captured bytes."""
        if not len(batch):
            return
        used = (int(batch.captured.max()) + 7) & ~7
        data = batch.data[:, : min(used, batch.data.shape[1])]
        if self._start == self._end:
            self._store, self._start, self._end = replace(batch, data=data), 0, len(batch)
            self._rows = None
            return
        width = max(self._store.data.shape[1], data.shape[1])
        if self._end + len(batch) > len(self._store) or width > self._store.data.shape[1]:
            self._move(len(batch), width)
        place = slice(self._end, self._end + len(batch))
        for name in _NAMES[:-1]:
            getattr(self._store, name)[place] = getattr(batch, name)
        self._store.data[place, : data.shape[1]] = data
        self._end += len(batch)
        self._rows = None

    def _move(self, extra: int, width: int) -> None:
        present = self.rows()
        store = PacketBatch.zeros(int((len(present) + extra) * _SPARE), width)
        for name in _NAMES[:-1]:
            getattr(store, name)[: len(present)] = getattr(present, name)
        store.data[: len(present), : present.data.shape[1]] = present.data
        self._store, self._start, self._end = store, 0, len(present)

    def forget(self, count: int) -> None:
        """Drop the oldest `count` rows."""
        self._start += count
        self._rows = None

    def rows(self) -> PacketBatch:
        """Return the present rows."""
        if self._rows is None:
            self._rows = self._store.select(slice(self._start, self._end))
        return self._rows


class Reservoir:
    """A uniform random sample of at most `most` packets of a stream, their weights scaled up.

    Algorithm R (Vitter 1985), a batch at a time: the t-th packet draws a random place of t, and is dropped
    unless that is one of the first `most`. The same packets give the same sample: reads of a capture agree.
    """

    def __init__(self, most: int = RESERVOIR_ROWS, seed: int = 0) -> None:
        self._most = most
        self._random = np.random.default_rng(seed)
        self._store = PacketBatch.empty()
        self._number = np.zeros(most, np.int64)  # of the packet in each place: the order of `rows`
        self._seen = 0
        self._lent = False  # a view of the storage was returned: copy before writing

    def append(self, batch: PacketBatch) -> None:
        """Offer packets."""
        if self._seen < self._most:  # fill up first
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
        _, last = np.unique(place[taken], return_index=True)  # the last packet drawn for a place wins
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


def add_counters(parts: list[Counters]) -> Counters:
    """Add the counters of consecutive intervals; gauges are those of the last one."""
    if len(parts) == 1:
        return parts[0]
    accepted = [part for part in parts if part.accepted_packets is not None]
    return replace(
        parts[-1],
        seconds=sum(part.seconds for part in parts),
        arrived_packets=sum(part.arrived_packets for part in parts),
        arrived_bytes=sum(part.arrived_bytes for part in parts),
        accepted_packets=sum(part.accepted_packets or 0 for part in accepted) if accepted else None,
        accepted_bytes=sum(part.accepted_bytes or 0 for part in accepted) if accepted else None,
        protocols=_add_protocols(parts),
        drops=_add_drops(drop for part in parts for drop in part.drops),
        rules=_add_rules(rule for part in parts for rule in part.rules),
        conntrack=_add_conntrack([(part.seconds, part.conntrack) for part in parts if part.conntrack]),
        records_lost=sum(part.records_lost for part in parts),
        softirq_share=_mean([part for part in parts if part.softirq_share is not None]),
        watched=_watched(parts),
    )


def part_of(counters: Counters, seconds: float, share: float) -> Counters:
    """Return the counters of a part of an interval: of so many seconds, with such a share of the packets."""

    def some(count: int) -> int:
        return round(count * share)

    accepted, size = counters.accepted_packets, counters.accepted_bytes
    return replace(
        counters,
        seconds=seconds,
        arrived_packets=some(counters.arrived_packets),
        arrived_bytes=some(counters.arrived_bytes),
        accepted_packets=None if accepted is None else some(accepted),
        accepted_bytes=None if size is None else some(size),
        protocols={name: (some(count), some(of)) for name, (count, of) in counters.protocols.items()},
        drops=tuple(
            replace(one, packets=some(one.packets), bytes=some(one.bytes), filtered=some(one.filtered))
            for one in counters.drops
        ),
        rules=tuple(replace(one, packets=some(one.packets), bytes=some(one.bytes)) for one in counters.rules),
        records_lost=some(counters.records_lost),
    )


def _watched(parts: list[Counters]) -> float:
    """Return the share of all packets that was counted, weighted by arrivals."""
    arrived = sum(part.arrived_packets for part in parts)
    counted = sum(part.arrived_packets * part.watched for part in parts)
    return counted / arrived if arrived else parts[-1].watched


def _add_protocols(parts: list[Counters]) -> dict[str, tuple[int, int]]:
    out: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (packets, size) in part.protocols.items():
            before = out.get(name, (0, 0))
            out[name] = (before[0] + packets, before[1] + size)
    return out


def _add_drops(drops: Iterable[DropCount]) -> tuple[DropCount, ...]:
    out: dict[tuple[str, str, str | None, bool], DropCount] = {}
    for drop in drops:
        key = (drop.layer, drop.reason, drop.rule, drop.before_delivery)
        before = out.get(key, replace(drop, packets=0, bytes=0, filtered=0))
        out[key] = replace(
            drop,
            packets=before.packets + drop.packets,
            bytes=before.bytes + drop.bytes,
            filtered=before.filtered + drop.filtered,
        )
    return tuple(out.values())


def _add_rules(rules: Iterable[RuleCount]) -> tuple[RuleCount, ...]:
    out: dict[str, RuleCount] = {}
    for rule in rules:
        before = out.get(rule.rule_id, replace(rule, packets=0, bytes=0))
        out[rule.rule_id] = replace(
            rule, packets=before.packets + rule.packets, bytes=before.bytes + rule.bytes
        )
    return tuple(out.values())


def _add_conntrack(timed: list[tuple[float, ConntrackSample]]) -> ConntrackSample | None:
    """Add samples, each weighted by its interval: the last one may be short and without packets."""
    if not timed:
        return None
    samples = [sample for _, sample in timed]
    seconds = sum(length for length, _ in timed)
    new = sum(length * sample.new_per_s for length, sample in timed)
    return replace(
        samples[-1],
        new_per_s=new / seconds if seconds > 0 else samples[-1].new_per_s,
        insert_failed=sum(sample.insert_failed for sample in samples),
        drop=sum(sample.drop for sample in samples),
        early_drop=sum(sample.early_drop for sample in samples),
    )


def _mean(parts: list[Counters]) -> float | None:
    seconds = sum(part.seconds for part in parts)
    if not parts or seconds <= 0:
        return parts[-1].softirq_share if parts else None
    return sum((part.softirq_share or 0.0) * part.seconds for part in parts) / seconds
