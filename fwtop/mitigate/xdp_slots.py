"""The guardian's view of the maps that all compiled rules share: slots, deadlines and counters.

Both are mapped memory: arming, disarming and keeping a rule is one store, reading its counter a few loads;
neither is a system call. Layout: struct xdp_slot and struct xdp_cell of bpf/xdp.h.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

from fwtop.mitigate.xdp_child import Loaded
from fwtop.model.errors import FwtopError

_SLOT_WORDS = 2  # deadline; number and padding
_SLOTS = 256
_NUMBER = struct.Struct("<Q")
_COUNT = struct.Struct("<QQ")  # packets, bytes


class Slots:
    """The maps' memory. Closes what it is given when it is closed itself."""

    def __init__(self, loaded: Loaded) -> None:
        self.maps = dict(loaded.maps)
        self._layout = loaded.layout
        self._slots_map = mmap.mmap(self.maps["slots"], _pages(16 * _SLOTS), mmap.MAP_SHARED)
        size = self._layout["cpus"] * self._layout["cell_bytes"]
        self._cells = mmap.mmap(self.maps["cells"], _pages(size), mmap.MAP_SHARED, mmap.PROT_READ)
        self._words = memoryview(self._slots_map).cast("Q")

    def numbers(self) -> dict[int, int]:
        """Return the slots in use: rule number by slot."""
        found = {at: self._words[_SLOT_WORDS * at + 1] & 0xFFFFFFFF for at in range(_SLOTS)}
        return {at: number for at, number in found.items() if number}

    def slot_of(self, rule_id: str) -> int | None:
        """Return a rule's slot."""
        return next((at for at, number in self.numbers().items() if str(number) == rule_id), None)

    def arm(self, slot: int, seconds: float) -> None:
        """Let a rule hit for so long from now on; one store, so no packet sees half of it."""
        deadline = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(seconds * 1e9)
        self._words[_SLOT_WORDS * slot] = deadline

    def disarm(self, slot: int) -> None:
        """Make a rule inert at once."""
        self._words[_SLOT_WORDS * slot] = 0

    def free(self, slot: int) -> None:
        """Give up a slot that no program asks any more."""
        self._words[_SLOT_WORDS * slot] = 0
        self._words[_SLOT_WORDS * slot + 1] = 0

    def count(self, slot: int) -> tuple[int, int]:
        """Return the packets and bytes that a slot's rule hit, over all CPUs."""
        at = self._layout["rules_at"] + _COUNT.size * slot
        cells = range(0, self._layout["cpus"] * self._layout["cell_bytes"], self._layout["cell_bytes"])
        pairs = [_COUNT.unpack_from(self._cells, cell + at) for cell in cells]
        return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)

    @property
    def unparsed(self) -> int:
        """How many packets could not be taken apart since the first rule, over all CPUs."""
        cells = range(0, self._layout["cpus"] * self._layout["cell_bytes"], self._layout["cell_bytes"])
        return sum(_NUMBER.unpack_from(self._cells, cell + self._layout["unparsed_at"])[0] for cell in cells)

    @property
    def cpus(self) -> int:
        """How many CPUs count apart from each other."""
        return self._layout["cpus"]

    def close(self) -> None:
        """Unmap and close."""
        self._words.release()
        self._slots_map.close()
        self._cells.close()
        for descriptor in self.maps.values():
            os.close(descriptor)
        self.maps = {}


def free_slot(used: dict[int, int]) -> int:
    """Return the lowest slot that is not in use; raises FwtopError when all are."""
    slot = next((at for at in range(_SLOTS) if at not in used), None)
    if slot is None:
        raise FwtopError(f"{_SLOTS} XDP rules are active already; nothing was installed")
    return slot


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
