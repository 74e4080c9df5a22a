"""Drops in the driver (P1): nothing but a drop, xdp-filter, fwtop's compiled rules with all that they do."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial

from fwtop.bench import ways
from fwtop.bench.arena import SOURCES, Arena
from fwtop.bench.bytecode import xdp_drop, xdp_read_and_drop
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import Program, fwtop_argv, run_fwtop
from fwtop.bench.receiver import PORT
from fwtop.bench.ways import FWTOP_PORT, Way, ending
from fwtop.lab.network import VICTIM_INTERFACE

_FIRST = "XDP_DROP alone"
_LIST, _QUICK_LIST, _RULES = 1_000_000, 50_000, 8
_OWN = {
    "fwtop drop by port": ["drop", *FWTOP_PORT, "--via", "xdp"],
    "fwtop block by source": ["block", SOURCES, "--via", "xdp"],
}


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.7 if options.quick else 1.5
    notes: list[str] = []
    with Arena() as arena:
        table: dict[str, Way] = {
            _FIRST: partial(xdp_drop, arena.victim),
            "XDP_DROP after a look at the packet": partial(xdp_read_and_drop, arena.victim),
        }
        if shutil.which("xdp-filter"):
            table["xdp-filter, one port and one address"] = partial(_xdp_filter, arena)
        own = ways.usable(arena, _OWN, notes)
        if own:
            count = _QUICK_LIST if options.quick else _LIST
            own[f"fwtop, {count:,} prefixes, {_RULES} rules, watched"] = partial(_everything, arena, count)
        table |= own
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
def _everything(arena: Arena, count: int) -> Iterator[None]:
    """Have a long list that the flood does not hit, rules of which only the last matches, and a watcher."""
    with tempfile.NamedTemporaryFile("w", prefix="fwtop-bench-") as file, contextlib.ExitStack() as stack:
        file.writelines(f"{_prefix(number)}\n" for number in range(count))
        file.flush()
        words = [["block", f"@{file.name}", "--via", "xdp"]]
        words += [_missing_rule(number) for number in range(_RULES - 1)]
        words.append(["drop", *FWTOP_PORT, "--via", "xdp"])
        stack.callback(run_fwtop, "undo", "--all", "--netns", arena.victim)
        for rule in words:
            run_fwtop(*rule, "--yes", "--netns", arena.victim)
        watching = ["snapshot", "--netns", arena.victim, "--seconds", "600", "--no-store", "--json"]
        stack.enter_context(Program(fwtop_argv(*watching), ready=True))
        yield


def _prefix(number: int) -> str:
    """Return one of many distinct /24 and addresses from 20.0.0.0 up; the flood comes from elsewhere."""
    value = (20 << 24) + number * 1024
    return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{'0/24' if number % 2 else '7'}"


def _missing_rule(number: int) -> list[str]:
    return [
        "drop",
        "--proto",
        "udp",
        "--dport",
        str(PORT + 1 + number),
        "--length",
        "100:200",
        "--via",
        "xdp",
    ]


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
