"""The ring buffer reader on a file with the kernel's layout."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fwtop.live.mapped import SLOT_BYTES, RingBuffer
from fwtop.observe.messages import RECORD_BYTES, record_dtype
from tests.unit.bpf_headers import run_c

SLOTS = 16
SIZE = SLOTS * SLOT_BYTES
BUSY, DISCARDED = 1 << 31, 1 << 30
DATA = 2 * mmap.PAGESIZE
# counters.h wants the helpers, though nothing calls them here
C_HEAD = """
#include <stdio.h>
#include <stddef.h>
#include <linux/kconfig.h>
static unsigned bpf_get_smp_processor_id(void) { return 0; }
static unsigned bpf_get_prandom_u32(void) { return 0; }
static u64 bpf_ktime_get_ns(void) { return 0; }
static u64 bpf_pseudo_fd(u64 kind, u64 fd) { return kind + fd; }
static u64 bpf_ringbuf_query(void *ring, u64 flags) { return 0; }
static void *bpf_ringbuf_reserve(void *ring, u64 size, u64 flags) { return NULL; }
static void bpf_ringbuf_submit(void *record, u64 flags) {}
#include "counters.h"
"""


class Ring:
    """Writes like the kernel; the data area is mapped twice, as the kernel does."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.fd, DATA + 2 * SIZE)
        self.position = 0

    def write(self, mark: int, flags: int = 0) -> None:
        record = np.zeros(1, record_dtype())
        record["rule"] = mark
        self.write_record(record, flags)

    def write_record(self, record: np.ndarray, flags: int = 0) -> None:
        slot = struct.pack("<II", RECORD_BYTES | flags, 0) + record.tobytes()
        for half in (0, SIZE):
            os.pwrite(self.fd, slot, DATA + half + self.position % SIZE)
        self.position += SLOT_BYTES
        os.pwrite(self.fd, struct.pack("<Q", self.position), mmap.PAGESIZE)

    def finish(self, number: int) -> None:
        for half in (0, SIZE):
            os.pwrite(self.fd, struct.pack("<I", RECORD_BYTES), DATA + half + number * SLOT_BYTES % SIZE)

    @property
    def consumed(self) -> int:
        return int(struct.unpack("<Q", os.pread(self.fd, 8, 0))[0])


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    made = Ring(tmp_path / "ring")
    yield made
    os.close(made.fd)


def marks(reader: RingBuffer, limit: int = 1000) -> list[int]:
    return [int(record["rule"]) for record in reader.read(limit)]


def test_records_come_once_and_in_order(ring: Ring) -> None:
    reader = RingBuffer(ring.fd, SIZE)
    assert marks(reader) == []
    for mark in range(5):
        ring.write(mark)
    assert reader.pending == 5
    assert marks(reader) == [0, 1, 2, 3, 4]
    assert marks(reader) == []
    assert ring.consumed == 5 * SLOT_BYTES
    reader.close()


def test_reading_wraps_around(ring: Ring) -> None:
    reader = RingBuffer(ring.fd, SIZE)
    for start in range(0, 100, 10):
        for mark in range(start, start + 10):
            ring.write(mark)
        assert marks(reader) == list(range(start, start + 10))
    reader.close()


def test_a_record_being_written_holds_the_rest_back(ring: Ring) -> None:
    reader = RingBuffer(ring.fd, SIZE)
    ring.write(0)
    ring.write(1, BUSY)
    ring.write(2)
    assert marks(reader) == [0]
    assert marks(reader) == []
    ring.finish(1)
    assert marks(reader) == [1, 2]
    reader.close()


def test_discarded_records_are_skipped(ring: Ring) -> None:
    reader = RingBuffer(ring.fd, SIZE)
    ring.write(0)
    ring.write(1, DISCARDED)
    ring.write(2)
    assert marks(reader) == [0, 2]
    assert reader.pending == 0
    reader.close()


def test_a_limit_leaves_the_rest_for_the_next_time(ring: Ring) -> None:
    reader = RingBuffer(ring.fd, SIZE)
    for mark in range(8):
        ring.write(mark)
    assert marks(reader, 3) == [0, 1, 2]
    assert marks(reader, 3) == [3, 4, 5]
    assert marks(reader) == [6, 7]
    reader.close()


@pytest.mark.parametrize("captured", [0, 1, 60, 215, 216, 255])
def test_bytes_of_older_packets_are_cleared(ring: Ring, captured: int) -> None:
    reader = RingBuffer(ring.fd, SIZE)
    record = np.zeros(1, record_dtype())
    record["data"] = 0xAA
    record["captured"] = captured
    record["reserved"] = 0x77
    ring.write_record(record)
    (read,) = reader.read(1)
    kept = min(captured, 216)
    assert read["data"].tolist() == [0xAA] * kept + [0] * (216 - kept)
    assert (read["captured"], read["reserved"]) == (captured, 0x77)
    reader.close()


def test_records_survive_overwriting_of_the_ring(ring: Ring) -> None:
    reader = RingBuffer(ring.fd, SIZE)
    ring.write(7)
    kept = reader.read(1)
    for mark in range(100, 100 + SLOTS):
        ring.write(mark)
    assert kept["rule"].tolist() == [7]
    reader.close()


@pytest.mark.parametrize("size", [SLOT_BYTES * 3, SLOT_BYTES // 2, 0x1001])
def test_a_ring_size_that_is_no_multiple_of_a_record_is_refused(ring: Ring, size: int) -> None:
    with pytest.raises(ValueError, match="whole records"):
        RingBuffer(ring.fd, size)


@pytest.mark.parametrize("given", [1, 24, 500])
def test_no_sample_stands_for_more_than_a_500th_of_what_came_before(tmp_path: Path, given: int) -> None:
    """In a flood, with nobody reading, N grows step by step until the ring is full."""
    slots = 16384
    source = tmp_path / "onset.c"
    head = C_HEAD.replace("return kind + fd;", "return (u64)words;").replace(
        "static u64 bpf_pseudo_fd", "static unsigned words[16];\nstatic u64 bpf_pseudo_fd"
    )
    head = head.replace("{ return 0; }\nstatic void *", "{ return filled * 256; }\nstatic void *")
    head = head.replace("static u64 bpf_ringbuf_query", "static u64 filled;\nstatic u64 bpf_ringbuf_query")
    source.write_text(
        f"{head}int main(void) {{ words[1] = {given};"
        f'for (filled = 0; filled < {slots}; filled++) printf("%u\\n", one_in(1)); return 0; }}'
    )
    steps = np.array(run_c(source, FWTOP_RING_BYTES=slots * SLOT_BYTES))
    assert (steps[: slots // 2] == given).all()
    assert (np.diff(steps) >= 0).all()
    before = np.concatenate(([0], np.cumsum(steps)[:-1]))
    assert (steps[slots // 2 + 1 :] <= before[slots // 2 + 1 :] / 500).all()
    assert steps.sum() > 60_000_000, "a second of the fastest flood on a fast link, before anybody reads"
