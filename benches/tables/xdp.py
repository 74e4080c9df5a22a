"""Drops in the driver (P1): a bare XDP_DROP, xdp-filter, and fwtop's compiled rules fully loaded.

Each twice: in the flood, where the receiver also waits for locks and memory that the sender's CPU holds, and
the program by itself on one frame in the cache (BPF_PROG_TEST_RUN), which is what its instructions cost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial

from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import FWTOP_PORT, DropMethod, attached, instruction, throughput, xdp_drop
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.bench.receiver import PORT
from fwtop.bench.testbed import SOURCES, Testbed
from fwtop.kernel import bpf
from fwtop.kernel.links import list_links
from fwtop.kernel.namespaces import inside
from fwtop.lab.network import VICTIM_INTERFACE
from fwtop.lab.processes import Program

_FIRST = "XDP_DROP alone"
_ALONE, _UNIT = ", by itself", "packets/s and core"
_LIST, _QUICK_LIST, _RULES = 1_000_000, 50_000, 8
_RUNS, _REPEAT = 15, 300_000
_OWN = {
    "fwtop drop by port": ["drop", *FWTOP_PORT, "--via", "xdp"],
    "fwtop block by source": ["block", SOURCES, "--via", "xdp"],
}


_READ_AND_DROP = b"".join(
    (
        instruction(0x61, 2, 1, 0),  # r2 = ctx->data
        instruction(0x61, 3, 1, 4),  # r3 = ctx->data_end
        instruction(0xBF, 4, 2),
        instruction(0x07, 4, number=42),  # r4 = r2 + the headers of UDP over IPv4
        instruction(0xB7, 0, number=1),  # r0 = XDP_DROP
        instruction(0x2D, 4, 3, 3),  # if r4 > r3 goto exit
        instruction(0x69, 5, 2, 12),  # r5 = the EtherType
        instruction(0x55, 5, 0, 1, 0x1234),  # if r5 != … goto exit
        instruction(0xB7, 0, number=2),  # r0 = XDP_PASS
        instruction(0x95),
    )
)


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.7 if options.quick else 1.5
    notes: list[str] = []
    with Testbed() as testbed:
        table: dict[str, DropMethod] = {
            _FIRST: partial(xdp_drop, testbed.victim),
            "XDP_DROP after reading the packet": partial(_read_and_drop, testbed.victim),
        }
        if shutil.which("xdp-filter"):
            table["xdp-filter, one port and one address"] = partial(_xdp_filter, testbed)
        own = drop_methods.installable(testbed, _OWN, notes)
        if own:
            count = _QUICK_LIST if options.quick else _LIST
            own[f"fwtop, {count:,} prefixes, {_RULES} rules, watched"] = partial(_everything, testbed, count)
        table |= own
        rows = [
            Row(name, _UNIT, partial(throughput, testbed, seconds, method), _versus(name, _FIRST))
            for name, method in table.items()
        ]
        first = _FIRST + _ALONE
        rows += [
            Row(name + _ALONE, "ns a packet", partial(_alone, testbed, method), _versus(name + _ALONE, first))
            for name, method in table.items()
        ]
        return Document("xdp", rounds, measure(rows, rounds), tuple(notes))


def _versus(name: str, first: str) -> str | None:
    return None if name == first else first


def _alone(testbed: Testbed, method: DropMethod) -> float:
    """Return the time of the program that a method attaches, without the network: of the fastest run."""
    with method():
        with inside(testbed.victim):
            [number] = next(link.xdp_programs for link in list_links() if link.name == VICTIM_INTERFACE)
        program = bpf.open_program(number)
        try:
            frame = testbed.frame()
            return float(min(bpf.run_program(program, frame, _REPEAT)[1] for _ in range(_RUNS)))
        finally:
            os.close(program)


@contextlib.contextmanager
def _everything(testbed: Testbed, count: int) -> Iterator[None]:
    """Install a long list that the flood misses and rules of which only the last matches; watch it all."""
    with tempfile.NamedTemporaryFile("w", prefix="fwtop-bench-") as file, contextlib.ExitStack() as stack:
        file.writelines(f"{_prefix(number)}\n" for number in range(count))
        file.flush()
        words = [["block", f"@{file.name}", "--via", "xdp"]]
        missing = ["drop", "--via", "xdp", "--length", "100:200", "--proto", "udp", "--dport"]
        words += [[*missing, str(port)] for port in range(PORT + 1, PORT + _RULES)]
        words.append(["drop", *FWTOP_PORT, "--via", "xdp"])
        stack.callback(run_fwtop, "undo", "--all", "--netns", testbed.victim)
        for rule in words:
            run_fwtop(*rule, "--yes", "--netns", testbed.victim)
        watching = ["snapshot", "--netns", testbed.victim, "--seconds", "600", "--no-store", "--json"]
        stack.enter_context(Program(fwtop_argv(*watching), ready=True))
        yield


def _prefix(number: int) -> str:
    """Return the n-th of many disjoint /24s and addresses above 20.0.0.0, none of them in the flood."""
    value = (20 << 24) + number * 1024
    return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{'0/24' if number % 2 else '7'}"


@contextlib.contextmanager
def _xdp_filter(testbed: Testbed) -> Iterator[None]:
    """Attach xdp-filter; its pins live in that command's mount namespace, the program stays attached."""
    commands = [
        "mount -t bpf bpf /sys/fs/bpf",
        f"xdp-filter load {VICTIM_INTERFACE} -m native -p allow",
        f"xdp-filter port {PORT} -m dst -p udp",
        "xdp-filter ip 203.0.113.1 -m src",
    ]
    try:
        testbed.run("sh", "-c", " && ".join(commands))
        yield
    finally:
        testbed.run("ip", "link", "set", VICTIM_INTERFACE, "xdp", "off")


def _read_and_drop(netns: str) -> contextlib.AbstractContextManager[None]:
    """Drop everything in the driver after reading the packet, whose bytes another CPU wrote.

    Every program that looks at packets pays for that cache miss.
    """
    return attached(netns, bpf.XDP, _READ_AND_DROP, partial(bpf.attach_xdp, native=True))
