"""The layout of bpf/cell.h and bpf/record.h as numpy sees it: the user-space side of both contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

CLASSES = ("tcp", "udp", "icmp", "icmpv6", "gre", "esp", "other", "non_ip")  # enum fwtop_class
NON_IP = CLASSES.index("non_ip")
HOOKS = 5
CONTROL_WORDS = HOOKS + 3  # struct fwtop_control: one_in, armed, open, netns; watched follows
NO_INTERFACE = 0xFFFFFFFF  # in a place of `watched` that isn't used
SITES = 24
DATA_BYTES = 216
RECORD_BYTES = 248  # 256 in the ring, with its own header of 8
_ALIGNMENT = 64


def cell_bytes(reasons: int) -> int:
    """Return sizeof(struct fwtop_cell)."""
    used = (len(CLASSES) + 2) * 16 + 6 * 8 + 2 * HOOKS * 4 + 2 * reasons * 16 + SITES * 16
    return -(-used // _ALIGNMENT) * _ALIGNMENT


def cell_dtype(reasons: int) -> np.dtype[Any]:
    """Return struct fwtop_cell for so many drop reasons."""
    import numpy as np

    count = [("packets", "<u8"), ("bytes", "<u8")]
    used = np.dtype(
        [
            ("arrived", count, (len(CLASSES),)),
            ("accepted", count, (2,)),
            ("reassembled", "<u8"),
            ("refused", "<u8"),
            ("fragments6", "<u8"),
            ("whole6", "<u8"),
            ("new_connections", "<u8"),
            ("lost", "<u8"),
            ("left", "<u4", (HOOKS,)),
            ("drawn", "<u4", (HOOKS,)),
            ("drops", count, (2, reasons)),
            ("sites", [("address", "<u8"), ("packets", "<u8")], (SITES,)),
        ]
    )
    padding = cell_bytes(reasons) - used.itemsize
    return np.dtype([*((name, used[name]) for name in used.names or ()), ("padding", "V", padding)])


def record_dtype() -> np.dtype[Any]:
    """Return struct fwtop_record."""
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
