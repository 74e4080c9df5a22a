"""The layouts of bpf/counters.h and bpf/record.h as numpy dtypes."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

from fwtop.model.traffic.counters import TRAFFIC_CLASSES

if TYPE_CHECKING:
    import numpy as np

HOOKS = 5
CONTROL_WORDS = HOOKS + 2  # struct fwtop_control: one_in, enabled, counting
SCOPE_WORDS = 2  # struct fwtop_scope: netns, bridged; watched and the role of each follow
PLAIN, PORT, BRIDGE = range(3)  # enum fwtop_role
NO_INTERFACE = 0xFFFFFFFF  # pads `watched`
LOCATIONS = 24  # the last one takes what found no place in struct fwtop_locations
DATA_BYTES = 216
RECORD_BYTES = 248  # 256 in the ring, with its own header of 8
_ALIGNMENT = 64


def scope_bytes(watched: int) -> int:
    """Return sizeof(struct fwtop_scope) for this number of interfaces."""
    return 4 * (SCOPE_WORDS + 2 * watched)


def counters_bytes(reasons: int) -> int:
    """Return sizeof(struct fwtop_counters)."""
    used = (len(TRAFFIC_CLASSES) + 2) * 16 + 7 * 8 + 2 * HOOKS * 4 + 2 * reasons * 16 + LOCATIONS * 8
    return -(-used // _ALIGNMENT) * _ALIGNMENT


def counters_dtype(reasons: int) -> np.dtype[Any]:
    """Return the dtype of struct fwtop_counters for this number of drop reasons."""
    import numpy as np

    count = [("packets", "<u8"), ("bytes", "<u8")]
    used = np.dtype(
        [
            ("arrived", count, (len(TRAFFIC_CLASSES),)),
            ("accepted", count, (2,)),
            ("reassembled", "<u8"),
            ("dropped_fragments", "<u8"),
            ("fragments6", "<u8"),
            ("reassembled6", "<u8"),
            ("filtered", "<u8"),
            ("new_connections", "<u8"),
            ("lost", "<u8"),
            ("left", "<u4", (HOOKS,)),
            ("drawn", "<u4", (HOOKS,)),
            ("drops", count, (2, reasons)),
            ("locations", "<u8", (LOCATIONS,)),
        ]
    )
    padding = counters_bytes(reasons) - used.itemsize
    return np.dtype([*((name, used[name]) for name in used.names or ()), ("padding", "V", padding)])


def read_locations(descriptor: int) -> list[int]:
    """Read the kernel addresses in struct fwtop_locations, 0 for an empty place; raises OSError."""
    with mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ) as memory:
        return list(struct.unpack_from(f"<{LOCATIONS - 1}Q", memory))


def record_dtype() -> np.dtype[Any]:
    """Return the dtype of struct fwtop_record."""
    import numpy as np

    return np.dtype(
        [
            ("time_ns", "<u8"),
            ("one_in", "<u4"),
            ("length", "<u4"),
            ("ifindex", "<u4"),
            ("segments", "<u2"),
            ("reason", "<u2"),
            ("rule", "<u4"),
            ("hook", "u1"),
            ("captured", "u1"),
            ("link", "u1"),
            ("reserved", "u1"),
            ("data", "u1", (DATA_BYTES,)),
        ]
    )
