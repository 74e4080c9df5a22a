"""Read a BPF ring buffer of fixed-size records as one numpy array: no privileges, no callback per record.

Source: Documentation/bpf/ringbuf.rst and kernel/bpf/ringbuf.c. Page 0 holds the consumer's position, which we
write, page 1 the producer's; the data area is mapped twice in a row, so that records that wrap around are
contiguous.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.observe.layout import DATA_BYTES, RECORD_BYTES, record_dtype

_HEADER_BYTES = 8
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_WORD_BYTES = 8
_HEAD_WORDS = (RECORD_BYTES - DATA_BYTES) // _WORD_BYTES  # of a record before its data
# Row n masks all but the first n bytes of a record's data, as words.
_MASKS = (
    np.where(np.arange(DATA_BYTES) < np.arange(DATA_BYTES + 1)[:, np.newaxis], 0xFF, 0)
    .astype(np.uint8)
    .view(np.uint64)
)
SLOT_BYTES = RECORD_BYTES + _HEADER_BYTES


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
        slot = np.dtype([("header", "<u4"), ("page", "<u4"), ("record", record_dtype())])
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
        words = records.view(np.uint64).reshape(len(records), RECORD_BYTES // _WORD_BYTES)
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
