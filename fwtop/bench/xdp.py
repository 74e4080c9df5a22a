"""Drops in the driver (P1): nothing but a drop, xdp-filter, fwtop's compiled rules with all that they do."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial

from fwtop.bench import ways
from fwtop.bench.arena import SOURCES, Arena
from fwtop.bench.bytecode import xdp_drop
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.receiver import PORT
from fwtop.bench.ways import FWTOP_PORT, Way, ending
from fwtop.lab.network import VICTIM_INTERFACE

_FIRST = "XDP_DROP alone"
_OWN = {
    "fwtop drop by port": ["drop", *FWTOP_PORT, "--via", "xdp"],
    "fwtop block by source": ["block", SOURCES, "--via", "xdp"],
}


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(9, 2), 0.7 if options.quick else 1.5
    notes: list[str] = []
    with Arena() as arena:
        table: dict[str, Way] = {_FIRST: partial(xdp_drop, arena.victim)}
        if shutil.which("xdp-filter"):
            table["xdp-filter, one port and one address"] = partial(_xdp_filter, arena)
        table |= ways.usable(arena, _OWN, notes)
        rows = [
            Row(
                name,
                "packets/s and core",
                partial(ending, arena, seconds, way),
                None if name == _FIRST else _FIRST,
            )
            for name, way in table.items()
        ]
        return Document("xdp", rounds, measure(rows, rounds), tuple(notes))


@contextlib.contextmanager
def _xdp_filter(arena: Arena) -> Iterator[None]:
    """Attach xdp-filter; its pins end with the mount namespace of that one command, the program stays."""
    commands = [
        "mount -t bpf bpf /sys/fs/bpf",
        f"xdp-filter load {VICTIM_INTERFACE} -m native -p allow",
        f"xdp-filter port {PORT} -m dst -p udp",
        "xdp-filter ip 203.0.113.1 -m src",
    ]
    try:
        arena.run("sh", "-c", " && ".join(commands))
        yield
    finally:
        arena.run("ip", "link", "set", VICTIM_INTERFACE, "xdp", "off")
