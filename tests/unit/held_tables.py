"""Tables of connections for tests, each part described by what its clients do."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from fwtop.model.traffic.packets import Connections, ListenQueue, SocketTable

PORT = 80
# What a connection of each sort looks like to the server: the defaults of `Connections`' columns
SORTS: dict[str, dict[str, Any]] = {
    "silent": {"since_received": 6.0, "since_sent": 6.0},
    "headers": {"received": 230, "segments_in": 1, "since_received": 6.0, "since_sent": 6.0},
    "crumbs": {"received": 320, "segments_in": 5, "since_received": 2.0, "since_sent": 40.0},
    "in TLS": {
        "received": 700, "segments_in": 4, "segments_out": 3, "since_received": 2.0, "since_sent": 12.0,
    },
    "asked": {"received": (350, 1400), "segments_in": 1, "since_received": 20.0, "since_sent": 20.0},
    "asked again": {
        "received": (4_000, 90_000), "segments_in": 40, "segments_out": 40, "since_received": 8.0,
        "since_sent": 9.0,
    },
    "kept alive": {
        "received": 900, "segments_in": 2, "segments_out": 9, "since_received": 9.0, "since_sent": 9.0,
    },
    "pushed": {
        "received": 700, "segments_in": 1, "segments_out": 80, "since_received": 300.0, "since_sent": 1.0,
    },
    "pushing": {
        "received": 9_000, "segments_in": 70, "segments_out": 3, "since_received": 1.0, "since_sent": 90.0,
    },
    "shipping": {
        "received": (300, 9_000), "segments_in": (4, 60), "since_received": (1, 40),
        "since_sent": (30, 900),
    },
    "stalled": {
        "received": 400, "segments_in": 3, "segments_out": 4, "since_received": 6.0, "since_sent": 3.0,
        "unsent": 90_000, "window": 300, "held": 6.0,
    },
    "queued": {
        "received": 5_000, "segments_in": 4, "since_received": 6.0, "since_sent": 6.0, "unread": 5_000,
    },
    "downloading": {
        "received": 500, "segments_in": 1, "segments_out": 900, "since_received": 60.0, "since_sent": 0.1,
        "unsent": 400_000, "window": 90_000, "held": 0.2,
    },
    "paused": {
        "received": 500, "segments_in": 1, "segments_out": 900, "since_received": 60.0, "since_sent": 5.0,
        "unsent": 400_000, "window": 0, "held": 30.0,
    },
}  # fmt: skip
_START = {"window": 64_000, "mss": 1_448, "seen": 5.0, "family": 4}


def table(
    *parts: tuple[str, int, int], port: int = PORT, queue: float = 0.0, share: float = 1.0, **changes: object
) -> SocketTable:
    """Make a table of parts (sort, connections, sources); each part has sources of its own."""
    rng = Random(7)
    columns: dict[str, list[Any]] = {name: [] for name in Connections.__struct_fields__}
    cookie = 1
    for number, (sort, count, sources) in enumerate(parts):
        for at in range(count):
            row = {name: 0 for name in columns} | _START | SORTS[sort] | changes
            row |= {"lo": 0x0A000001 + (number << 16) + at % sources, "peer_port": 1024 + at, "port": port}
            row["cookie"], cookie = cookie, cookie + 1
            for name, value in row.items():
                columns[name].append(rng.randint(*value) if isinstance(value, tuple) else value)
    kinds = {name: getattr(Connections.empty(), name).dtype for name in columns}
    made = Connections(**{name: np.array(values, kinds[name]) for name, values in columns.items()})
    return SocketTable(made, share, (ListenQueue(port, int(queue * 511), 511),))
