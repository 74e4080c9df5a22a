"""The maps that all compiled rules of a namespace share, and their layout as in bpf/xdp.h.

They are created when a console starts or a rule is installed, whichever comes first, and are pinned in bpffs
with the first rule, so that counters and deadlines outlive all processes.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fwtop.kernel import bpf
from fwtop.kernel.descriptors import closing
from fwtop.model.traffic.counters import TRAFFIC_CLASSES

if TYPE_CHECKING:
    import numpy as np

MAX_RULES = 256
RINGS = 8
CLASSES = len(TRAFFIC_CLASSES)
SLOT_BYTES = 16  # struct xdp_slot
VIEW_BYTES = 112  # struct view: scratch space
_CLASSES_AT = 48  # in struct xdp_counters, after 4 numbers of 8 bytes and 4 of 4
RULES_AT = _CLASSES_AT + 16 * CLASSES
PARSE_ERRORS_AT = 0
COUNTERS_BYTES = 64 * -(-(_CLASSES_AT + 16 * (CLASSES + MAX_RULES) + VIEW_BYTES) // 64)
# struct xdp_allow of bpf/xdp_allow.h, in words of 8 bytes: a bitmap of ports, then peers; the same for
# conversations of hosts behind
ALLOW_PORT_WORDS, ALLOW_PEERS, ALLOW_PROBES, PEER_WORDS = 1024, 8192, 16, 3
ALLOW_BEHIND, BEHIND_WORDS = 4096, 5
BEHIND_AT = ALLOW_PORT_WORDS + PEER_WORDS * ALLOW_PEERS
ALLOW_BYTES = 8 * (BEHIND_AT + ALLOW_PORT_WORDS + BEHIND_WORDS * ALLOW_BEHIND)
PENDING_BYTES = 64 * 16  # for each CPU: struct pending of bpf/xdp_lists.h
SHARED = ("counters", "control", "slots", "allow", "rings")
FOR_CONSOLE = ("counters", "control", "slots")  # read-only, except control
_RING_BYTES = 4096  # of the template for the rings in the map


def shared_sizes() -> dict[str, int]:
    """Return the value sizes of the shared arrays, in bytes, as this version makes them."""
    return {
        "counters": possible_cpus() * COUNTERS_BYTES,
        "control": 4,
        "slots": MAX_RULES * SLOT_BYTES,
        "allow": ALLOW_BYTES,
    }


def create_shared() -> dict[str, int]:
    """Create empty maps; returns descriptors by name. Raises OSError."""
    found: dict[str, int] = {}
    for name, size in shared_sizes().items():
        found[name] = bpf.create_map(
            bpf.MAP_ARRAY, _map_name(name), entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
        )
    with closing(bpf.create_map(bpf.MAP_RINGBUF, "fwtop_xring", entries=_RING_BYTES)) as pattern:
        found["rings"] = bpf.create_map_of_maps(_map_name("rings"), RINGS, pattern)
    return found


def _map_name(name: str) -> str:
    return f"fwtop_x{name}"


def find_shared(directory: Path, name: str) -> int | None:
    """Find a shared map whose pin is gone through the attached programs in a directory of pins.

    Returns a new descriptor, or None if no program uses the map. Raises OSError.
    """
    for path in sorted(directory.glob("link-*")) + sorted(directory.glob("filter-*")):
        opened = [bpf.open_pin(path)]
        try:
            if path.name.startswith("link-"):
                opened.append(bpf.link_program(opened[0]))
            for number in bpf.program_maps(opened[-1]):
                found = bpf.open_map(number)
                if bpf.map_name(found) == _map_name(name):
                    return found
                os.close(found)
        except FileNotFoundError:  # a link that lost its interface
            continue
        finally:
            for descriptor in opened:
                os.close(descriptor)
    return None


def console_descriptors(shared: dict[str, int]) -> dict[str, int]:
    """Return new descriptors for a console, which may read counters and set 1-in-N, nothing else."""
    return {
        name: os.dup(shared[name]) if name == "control" else bpf.read_only(shared[name])
        for name in FOR_CONSOLE
    }


def put_ring(shared: dict[str, int], slot: int, ring: int | None) -> None:
    """Sample dropped packets into a console's ring, or (None) stop that; raises OSError."""
    if slot >= RINGS:
        return
    key = slot.to_bytes(4, "little")
    if ring is not None:
        bpf.set_element(shared["rings"], key, ring.to_bytes(4, "little"))
        return
    try:
        bpf.delete_element(shared["rings"], key)
    except FileNotFoundError:
        return


def counters_dtype() -> np.dtype[Any]:
    """Return struct xdp_counters."""
    import numpy as np

    count = [("packets", "<u8"), ("bytes", "<u8")]
    return np.dtype(
        {
            "names": ["parse_errors", "lost", "left", "drawn", "classes", "rules"],
            "formats": ["<u8", "<u8", "<u4", "<u4", (count, (CLASSES,)), (count, (MAX_RULES,))],
            "offsets": [PARSE_ERRORS_AT, 8, 16, 20, _CLASSES_AT, RULES_AT],
            "itemsize": COUNTERS_BYTES,
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
    """Return the number of CPUs that have counters."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return int(text.strip().split(",")[-1].split("-")[-1]) + 1
