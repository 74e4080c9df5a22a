"""The maps that all compiled XDP rules of a namespace share, and their layout as in bpf/xdp.h.

They are created when a console begins to watch or a rule is installed, whichever is first, and get names in
bpffs with the first rule, so that counters and deadlines outlive every process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fwtop.collect import bpf, bpf_objects

if TYPE_CHECKING:
    import numpy as np

MAX_RULES = 256
RINGS = 8
CLASSES = 8
SLOT_BYTES = 16  # struct xdp_slot
VIEW_BYTES = 112  # struct view: what the programs know of the packet at hand
_COUNTS_AT = 48  # in struct xdp_cell: what comes before is 4 numbers of 8 bytes and 4 of 4
CELL_BYTES = 64 * -(-(_COUNTS_AT + 16 * (CLASSES + MAX_RULES) + VIEW_BYTES) // 64)
SHARED = ("cells", "control", "slots", "rings")
FOR_CONSOLE = ("cells", "control", "slots")  # all but control for reading only
_RING_BYTES = 4096  # of the ring that says what may be put into the array of rings


def layout() -> dict[str, int]:
    """Return what a reader of the cells needs to know of their layout: bytes, and how many there are."""
    offsets = cell_dtype().fields
    return {
        "cpus": possible_cpus(),
        "cell_bytes": CELL_BYTES,
        "rules_at": int(offsets["rules"][1]) if offsets is not None else 0,
        "unparsed_at": int(offsets["unparsed"][1]) if offsets is not None else 0,
    }


def create_shared() -> dict[str, int]:
    """Create the maps that no rule is in yet; returns descriptors by name. Raises OSError."""
    cpus = possible_cpus()
    found: dict[str, int] = {}
    sizes = {
        "cells": cpus * CELL_BYTES,
        "control": 4,
        "slots": MAX_RULES * SLOT_BYTES,
    }
    for name, size in sizes.items():
        found[name] = bpf.create_map(
            bpf.MAP_ARRAY, f"fwtop_x{name}", entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
        )
    pattern = bpf.create_map(bpf.MAP_RINGBUF, "fwtop_xring", entries=_RING_BYTES)
    try:
        found["rings"] = bpf_objects.create_map_of_maps("fwtop_xrings", RINGS, pattern)
    finally:
        os.close(pattern)
    return found


def console_descriptors(shared: dict[str, int]) -> dict[str, int]:
    """Return new descriptors for a console: it reads counters and sets 1-in-N, and changes nothing else."""
    return {
        name: os.dup(shared[name]) if name == "control" else bpf_objects.read_only(shared[name])
        for name in FOR_CONSOLE
    }


def put_ring(shared: dict[str, int], slot: int, ring: int | None) -> None:
    """Have dropped packets sampled into a console's ring, or (None) no more; raises OSError."""
    if slot >= RINGS:
        return
    key = slot.to_bytes(4, "little")
    if ring is not None:
        bpf_objects.set_element(shared["rings"], key, ring.to_bytes(4, "little"))
        return
    try:
        bpf_objects.delete_element(shared["rings"], key)
    except FileNotFoundError:
        return


def cell_dtype() -> np.dtype[Any]:
    """Return struct xdp_cell."""
    import numpy as np

    count = [("packets", "<u8"), ("bytes", "<u8")]
    return np.dtype(
        {
            "names": ["unparsed", "lost", "left", "drawn", "classes", "rules"],
            "formats": ["<u8", "<u8", "<u4", "<u4", (count, (CLASSES,)), (count, (MAX_RULES,))],
            "offsets": [0, 8, 16, 20, _COUNTS_AT, _COUNTS_AT + 16 * CLASSES],
            "itemsize": CELL_BYTES,
        }
    )


def slot_dtype() -> np.dtype[Any]:
    """Return struct xdp_slot."""
    import numpy as np

    return np.dtype([("deadline", "<u8"), ("number", "<u4"), ("at_tc", "<u4")])


def map_array(descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map a mappable array of one value of `size` bytes; raises OSError."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(descriptor, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MAP_SHARED, access)


def possible_cpus() -> int:
    """Return the number of CPUs that cells are made for."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return int(text.strip().split(",")[-1].split("-")[-1]) + 1


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
