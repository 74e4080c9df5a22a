"""A roll-out to many machines in one wave: from Enter to the first packet that each drops.

Enter is a key on a terminal, at the question of `fwtop fleet block`; the packets are those of ipset rules,
by the kernel's clock. All machines are in namespaces of this one and share its CPUs with the lab's servers,
clients and floods: on machines of their own they install a rule beside each other.
"""

from __future__ import annotations

import os
import pty
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fwtop.bench.frame import Document, Options, Row, measure, progress
from fwtop.compile.compiler import Kernel, compile_in_process
from fwtop.kernel.namespaces import NETNS
from fwtop.kernel.programs import module_argv
from fwtop.lab.fleet import SOURCES, FleetLab
from fwtop.model.errors import FwtopError

_MACHINES, _FEW = 20, 6
_PPS = 100  # to each machine: a packet in 10 ms is enough to see when the first one is dropped
_THINKING_SECONDS = 5.0  # of each of a machine's twelve clients
_QUESTION = b"[y/N]"
_BETWEEN_SECONDS = 5.0
_WHICH = ("first", "median", "last")  # machine
_TRIES = 6


def run(options: Options) -> Document:
    """Measure the table."""
    machines = int(options.captures[0]) if options.captures else _FEW if options.quick else _MACHINES
    rounds = options.choose(5, 2)
    drops = compile_in_process(str(Path(__file__).parents[1] / "first_drops.c"), Kernel.read().definitions)[
        "first"
    ]
    names = [f"web-{number}" for number in range(1, machines + 1)]
    with FleetLab(progress, names=names, attacked=machines, thinking=_THINKING_SECONDS) as lab:
        lab.all_do(do="flood", on=True, pps=_PPS, seconds=3600)
        turn = _Turn(lab, drops)
        results = measure(list(_rows(turn)), rounds)
    note = f"{machines} machines, {os.cpu_count()} CPUs; load {os.getloadavg()[0]:.0f} at the end"
    note += f"; {turn.missed} tries did not reach all and are left out"
    return Document("fleet", rounds, results, (note,))


def _rows(turn: _Turn) -> Iterator[Row]:
    """Yield the rows; the first makes the turn that the others report."""
    yield Row("the command to its question: sign, ask all, rehearse", "s", turn.run)
    for name in _WHICH:
        yield Row(
            f"Enter to the first packet dropped: {name} machine", "s", partial(turn.figures.__getitem__, name)
        )


class _Turn:
    """One roll-out, and its end."""

    def __init__(self, lab: FleetLab, drops: Any) -> None:  # noqa: ANN401 - bcc has no types
        self._lab, self._drops = lab, drops
        self._inodes = {os.stat(NETNS / one.victim).st_ino for one in lab.machines}
        self.figures: dict[str, float] = {}
        self.missed = 0  # tries

    def run(self) -> float:
        """Roll a rule out and back; return the seconds to the question.

        Again, some times, where a machine did not take part: all must be in one wave.
        """
        for _ in range(_TRIES):
            asked = self._once()
            if len(self.figures) == len(_WHICH):
                return asked
            self.missed += 1
            progress(f"not on all machines: again ({self.missed})")
        raise FwtopError(f"in {_TRIES} tries the rule was never in force on all machines in one wave")

    def _once(self) -> float:
        own = ("--key", str(self._lab.key), "--fleet", str(self._lab.directory / "fleet/operator"))
        how = ("--on", "web", "--waves", "all", "--everywhere", "--measure", "2s")
        terminal, end = pty.openpty()
        argv = ["ip", "netns", "exec", self._lab.hub, *module_argv("fwtop", "fleet", "block", SOURCES)]
        began, said = time.monotonic(), b""
        with subprocess.Popen([*argv, *how, *own], stdin=end, stdout=end, stderr=end):
            os.close(end)
            while _QUESTION not in said:
                said += _read(terminal)
            asked = time.monotonic() - began
            self._drops.clear()
            entered = time.monotonic_ns()
            os.write(terminal, b"y\n")
            while more := _read(terminal, last=True):
                said += more
        os.close(terminal)
        self._take(entered, said.decode(errors="replace"))
        return asked

    def _take(self, entered: int, said: str) -> None:
        """Note when each machine dropped its first packet, and take the roll-out back."""
        found = sorted(
            (at.value - entered) / 1e9 for number, at in self._drops.items() if number.value in self._inodes
        )
        kept = re.search(r"roll-out (\w+): kept", said)
        self.figures.clear()
        if len(found) == len(self._inodes):
            figures = found[0], statistics.median(found), found[-1]
            self.figures |= zip(_WHICH, figures, strict=True)
            progress("from Enter: " + ", ".join(f"{seconds:.2f} s" for seconds in figures))
        if kept is not None:
            own = ("--key", str(self._lab.key))
            self._lab.coordinator(
                "undo", kept[1], *own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ).wait()
        time.sleep(_BETWEEN_SECONDS)


def _read(terminal: int, *, last: bool = False) -> bytes:
    """Return what comes; b"" at the end, which is an error unless it may be."""
    try:
        found = os.read(terminal, 1 << 16)
    except OSError:  # EIO: the other end is closed
        found = b""
    if not found and not last:
        raise FwtopError("the command ended before it asked")
    return found
