"""The observers' memory, mapped: counters, controls and samples, read without system calls and privileges.

Of the ring buffer (Documentation/bpf/ringbuf.rst, kernel/bpf/ringbuf.c) page 0 holds the consumer's position,
which we write, page 1 the producer's; the data area is mapped twice in a row, so that records that wrap are
contiguous.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from fwtop.observe import messages

Count = NDArray[np.int64]  # (…, 2): packets, bytes
PACKETS, BYTES = 0, 1
_SUMS = (
    "reassembled", "dropped_fragments", "fragments6", "reassembled6", "filtered", "new_connections", "lost",
)  # fmt: skip
_ENABLED, _COUNTING = messages.HOOKS, messages.HOOKS + 1  # words of struct fwtop_control behind one_in


class Totals(Struct, frozen=True):
    """Counts of all CPUs, since the programs were attached or in an interval."""

    arrived: Count  # (classes,)
    accepted: Count  # (2,): input, forward
    drops: Count  # (2, reasons): inbound, outbound
    reassembled: int  # fragments of accepted packets, not counting the first of each
    dropped_fragments: int  # the same of dropped packets
    fragments6: int  # IPv6 fragments that arrived
    reassembled6: int  # IPv6 packets made of them
    filtered: int  # netfilter's inbound drops behind routing
    new_connections: int
    lost: int  # samples
    locations: dict[int, int]  # drops without a reason: index in struct fwtop_locations → packets
    per_cpu: NDArray[np.int64]  # (cpus, 3): arrived, dropped, accepted packets

    def since(self, before: Totals) -> Totals:
        """Return the interval between two readings."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Totals(*(_grown(now, old) for now, old in pairs))

    def scaled(self, factor: float) -> Totals:
        """Extrapolate counts of a part of the time to all of it; lost samples are not extrapolated."""
        return replace(Totals(*(_scaled(value, factor) for value in astuple(self))), lost=self.lost)

    @property
    def arrived_packets(self) -> int:
        """Packets of all classes."""
        return int(self.arrived[:, PACKETS].sum())


class CounterMaps:
    """The per-CPU counters and the control block of the observers."""

    def __init__(self, counters_fd: int, control_fd: int, *, cpus: int, reasons: int) -> None:
        self._counters_map = mmap.mmap(counters_fd, _pages(cpus * messages.counters_bytes(reasons)))
        self._control_map = mmap.mmap(control_fd, _pages(4 * messages.CONTROL_WORDS))
        self._counters = np.frombuffer(self._counters_map, messages.counters_dtype(reasons), cpus)
        self._control = np.frombuffer(self._control_map, np.uint32, messages.CONTROL_WORDS)

    def arrived(self) -> Count:
        """Sum up only the packets that arrived, by class."""
        return np.asarray(_counts(self._counters["arrived"]).sum(axis=0), np.int64)

    def totals(self) -> Totals:
        """Sum up the CPUs' counters."""
        counters = self._counters.copy()
        arrived, accepted, drops = (_counts(counters[name]) for name in ("arrived", "accepted", "drops"))
        locations = enumerate(counters["locations"].sum(axis=0).tolist())
        return Totals(
            arrived=arrived.sum(axis=0),
            accepted=accepted.sum(axis=0),
            drops=drops.sum(axis=0),
            **{name: int(counters[name].sum()) for name in _SUMS},
            locations={index: packets for index, packets in locations if packets},
            per_cpu=np.stack(
                [
                    arrived[..., PACKETS].sum(axis=1),
                    drops[..., PACKETS].sum(axis=(1, 2)),
                    accepted[..., PACKETS].sum(axis=1),
                ],
                axis=1,
            ),
        )

    def set_one_in(self, hook: int, n: int) -> None:
        """Sample 1 in n from now on; cut longer countdowns, or a quiet hook would go unsampled for long."""
        self._control[hook] = n
        longer = self._counters["drawn"][:, hook] > 2 * n
        if longer.any():
            self._counters["left"][longer, hook] = np.minimum(self._counters["left"][longer, hook], n)
            self._counters["drawn"][longer, hook] = n

    def enable(self) -> None:
        """Let all hooks count, from the next packet on that arrives."""
        self._control[_ENABLED] = 1

    def disable(self) -> None:
        """Stop counting at all hooks at once."""
        self._control[_ENABLED] = 0
        self._control[_COUNTING] = 0

    def close(self) -> None:
        """Unmap; the descriptors stay the caller's."""
        del self._counters, self._control
        self._counters_map.close()
        self._control_map.close()


def _grown(now: Any, before: Any) -> Any:  # noqa: ANN401 - numbers, arrays or numbers by key
    if isinstance(now, dict):
        return {key: count - before.get(key, 0) for key, count in now.items() if count > before.get(key, 0)}
    return now - before


def _scaled(value: Any, factor: float) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, dict):
        return {key: round(count * factor) for key, count in value.items()}
    return round(value * factor) if isinstance(value, int) else np.rint(value * factor).astype(np.int64)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _counts(pairs: NDArray[Any]) -> Count:
    """Return packets and bytes as a last axis of 2."""
    return np.stack([pairs["packets"], pairs["bytes"]], axis=-1).astype(np.int64)


_HEADER_BYTES = 8
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_WORD_BYTES = 8
_HEAD_WORDS = (messages.RECORD_BYTES - messages.DATA_BYTES) // _WORD_BYTES  # of a record before its data
# Row n masks all but the first n bytes of a record's data, as words.
_MASKS = (
    np.where(np.arange(messages.DATA_BYTES) < np.arange(messages.DATA_BYTES + 1)[:, np.newaxis], 0xFF, 0)
    .astype(np.uint8)
    .view(np.uint64)
)
SLOT_BYTES = messages.RECORD_BYTES + _HEADER_BYTES


class RingBuffer:
    """The pending records behind a descriptor; `ring_bytes` is the size of the data area.

    Every record must take SLOT_BYTES, and the data area must be a multiple of it.
    """

    def __init__(self, descriptor: int, ring_bytes: int) -> None:
        if ring_bytes % SLOT_BYTES or ring_bytes & (ring_bytes - 1):
            raise ValueError(f"a ring of {ring_bytes} bytes doesn't hold whole records of {SLOT_BYTES}")
        page = mmap.PAGESIZE
        self._size = ring_bytes
        self._consumer_map = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._data_map = mmap.mmap(
            descriptor, page + 2 * ring_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._consumer = np.frombuffer(self._consumer_map, np.uint64, 1)
        self._producer = np.frombuffer(self._data_map, np.uint64, 1)
        slot = np.dtype([("header", "<u4"), ("page", "<u4"), ("record", messages.record_dtype())])
        self._slots = np.frombuffer(self._data_map, slot, 2 * ring_bytes // SLOT_BYTES, offset=page)

    @property
    def capacity(self) -> int:
        """How many records fit."""
        return self._size // SLOT_BYTES

    @property
    def pending(self) -> int:
        """Unread records, including one that is still being written."""
        return (int(self._producer[0]) - int(self._consumer[0])) // SLOT_BYTES

    def read(self, limit: int) -> NDArray[Any]:
        """Consume up to `limit` complete records, oldest first; returns a copy, of `record_dtype`.

        Stops at the first record that is still being written, to keep the order. Data behind the captured
        bytes is zeroed.
        """
        position = int(self._consumer[0])
        count = min((int(self._producer[0]) - position) // SLOT_BYTES, limit)
        start = position % self._size // SLOT_BYTES
        slots = self._slots[start : start + count]
        busy = np.flatnonzero(slots["header"] & _BUSY)
        if len(busy):
            slots = slots[: busy[0]]
        records: NDArray[Any] = slots["record"].copy()
        words = records.view(np.uint64).reshape(len(records), messages.RECORD_BYTES // _WORD_BYTES)
        data = words[:, _HEAD_WORDS:]
        np.bitwise_and(data, _MASKS.take(records["captured"], axis=0, mode="clip"), out=data)
        discarded = slots["header"] & _DISCARDED != 0
        if discarded.any():
            records = records[~discarded]
        self._consumer[0] = position + len(slots) * SLOT_BYTES
        return records

    def close(self) -> None:
        """Unmap; the descriptor stays the caller's."""
        del self._consumer, self._producer, self._slots
        self._consumer_map.close()
        self._data_map.close()
