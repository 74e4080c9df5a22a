"""What the open screen costs under a full flood (P4, P5, P10): bytes, processor time, memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fwtop.bench.arena import Arena, flood_text, processor_seconds
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import fwtop_argv
from fwtop.bench.terminal import Terminal, process_in
from fwtop.model.errors import FwtopError

_PATIENCE_SECONDS = 20.0
_SETTLE_SECONDS = 3.0  # a window of the screen's
_MODULES = {"console": "fwtop.console", "guardian": "fwtop.mitigate.guardian"}


def run(options: Options) -> Document:
    """Measure the table: one sitting a round at each of the two speeds."""
    rounds, seconds = options.choose(3, 1), 4.0 if options.quick else 10.0
    with Arena(flood_text(sources="198.19.0.0/16", sport="random")) as arena:
        normal, slow = _Sitting(arena, seconds, []), _Sitting(arena, seconds, ["--slow"])
        rows = [
            Row("bytes to the terminal", "bytes/s", lambda: normal.take().bytes_per_second),
            Row("bytes to the terminal, --slow", "bytes/s", lambda: slow.take().bytes_per_second,
                "bytes to the terminal"),
            Row("offered to the victim", "packets/s", lambda: normal.last.offered_pps),
        ]  # fmt: skip
        for name in _MODULES:
            rows += [
                Row(f"{name}'s processor time", "% of a core", partial(normal.processor, name)),
                Row(f"{name}'s memory (PSS)", "MiB", partial(normal.memory, name)),
            ]
        return Document("screen", rounds, measure(rows, rounds))


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one sitting came to; by process name: seconds of processor time a second, bytes."""

    bytes_per_second: float
    offered_pps: float
    processor: dict[str, float]
    memory: dict[str, int]


class _Sitting:
    """A screen of 200×50 that is looked at for a while."""

    def __init__(self, arena: Arena, seconds: float, words: list[str]) -> None:
        self._arena, self._seconds, self._words = arena, seconds, words
        self.last = _Taken(0.0, 0.0, {}, {})

    def take(self) -> _Taken:
        """Open the screen, flood, measure, close."""
        argv = fwtop_argv("watch", "--netns", self._arena.victim, "--no-store", *self._words)
        lab = self._arena.lab
        with Terminal(argv) as terminal:
            terminal.wait_for(" pps", _PATIENCE_SECONDS)
            with self._arena.flooded():
                time.sleep(_SETTLE_SECONDS)
                pids = {name: self._pid(module) for name, module in _MODULES.items()}
                before, started = self._counts(pids), time.monotonic()
                shown, offered = terminal.bytes, lab.arrived()[0] + lab.link_full()
                time.sleep(self._seconds)
                taken = time.monotonic() - started
                after = self._counts(pids)
                self.last = _Taken(
                    (terminal.bytes - shown) / taken,
                    (lab.arrived()[0] + lab.link_full() - offered) / taken,
                    {name: (after[name] - before[name]) / taken for name in pids},
                    {name: proportional_bytes(pid) for name, pid in pids.items()},
                )
        return self.last

    def processor(self, name: str) -> float:
        """Return a process's share of a core in the round's sitting, in per cent."""
        return self.last.processor[name] * 100

    def memory(self, name: str) -> float:
        """Return a process's memory in the round's sitting, in MiB."""
        return self.last.memory[name] / (1 << 20)

    def _pid(self, module: str) -> int:
        pid = process_in(self._arena.victim, module)
        if pid is None:
            raise FwtopError(f"no {module} runs in the lab; the lab is taken down")
        return pid

    @staticmethod
    def _counts(pids: dict[str, int]) -> dict[str, float]:
        return {name: processor_seconds(pid) for name, pid in pids.items()}


def proportional_bytes(pid: int) -> int:
    """Return a process's proportional set size (proc_pid_smaps(5))."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
