"""What the open screen costs (P4, P5, P10): bytes, processor time, memory, from little load to all that goes.

The last load is dropped by a rule in the driver, which is how such a flood is survived: then the victim takes
in as much as the lab's sender can make. Everything is measured once the screen has settled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fwtop.bench.arena import Arena, flood_text, processor_seconds
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.bench.receiver import PORT
from fwtop.bench.terminal import Terminal, process_in
from fwtop.model.errors import FwtopError

_PATIENCE_SECONDS = 20.0
_SETTLE_SECONDS = 5.0
_MODULES = {"console": "fwtop.console", "guardian": "fwtop.mitigate.guardian"}
_BUSY = "400,000 packets/s"  # every picture is made, and every packet watched
_FULL, _DRIVER = "all that can be sent", "all that can be sent, dropped by XDP"
_LOADS = {"100,000 packets/s": 100_000, _BUSY: 400_000, _FULL: 0, _DRIVER: 0}
_RULE = ("drop", "--proto", "udp", "--dport", str(PORT), "--via", "xdp", "--ttl", "10m", "--yes", "--force")


def run(options: Options) -> Document:
    """Measure the table: one sitting a round at each load, and one at the slow speed."""
    rounds, seconds = options.choose(3, 1), 3.0 if options.quick else 10.0
    with Arena(flood_text(sources="198.19.0.0/16", sport="random")) as arena:
        sittings = {
            load: _Sitting(arena, seconds, pps, by_rule=load == _DRIVER) for load, pps in _LOADS.items()
        }
        slow = _Sitting(arena, seconds, _LOADS[_BUSY], words=("--slow",))
        rows = [row for load, sitting in sittings.items() for row in _rows(load, sitting)]
        busy, full = sittings[_BUSY], sittings[_FULL]
        rows += [Row(f"{name}'s memory (PSS)", "MiB", partial(full.memory, name)) for name in _MODULES]
        rows.append(Row("bytes to the terminal", "bytes/s", lambda: busy.last.bytes_per_second))
        rows.append(
            Row("bytes to the terminal, --slow", "bytes/s", lambda: slow.take().bytes_per_second,
                "bytes to the terminal")
        )  # fmt: skip
        return Document("screen", rounds, measure(rows, rounds))


def _rows(load: str, sitting: _Sitting) -> list[Row]:
    """Return the rows of a load: the first takes the sitting, the others tell of it."""
    return [
        Row(f"{load}: offered", "packets/s", lambda: sitting.take().offered_pps),
        *(
            Row(f"{load}: {name}'s processor time", "% of a core", partial(sitting.processor, name))
            for name in _MODULES
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one sitting came to; by process name: seconds of processor time a second, bytes."""

    bytes_per_second: float
    offered_pps: float
    processor: dict[str, float]
    memory: dict[str, int]


class _Sitting:
    """A screen of 200×50 that is looked at for a while; with `by_rule` XDP drops what it shows."""

    def __init__(
        self, arena: Arena, seconds: float, pps: int, *, words: tuple[str, ...] = (), by_rule: bool = False
    ) -> None:
        self._arena, self._seconds, self._pps, self._words = arena, seconds, pps, words
        self._by_rule = by_rule
        self.last = _Taken(0.0, 0.0, {}, {})

    def take(self) -> _Taken:
        """Open the screen, flood, measure, close."""
        argv = fwtop_argv("watch", "--netns", self._arena.victim, "--no-store", *self._words)
        with Terminal(argv) as terminal:
            terminal.wait_for(" pps", _PATIENCE_SECONDS)
            with self._arena.flooded(self._pps), self._rule():
                time.sleep(_SETTLE_SECONDS)
                self.last = self._measure(terminal)
        return self.last

    def _measure(self, terminal: Terminal) -> _Taken:
        pids = {name: self._pid(module) for name, module in _MODULES.items()}
        before, started = self._counts(pids), time.monotonic()
        shown, offered = terminal.bytes, self._offered()
        time.sleep(self._seconds)
        taken = time.monotonic() - started
        after = self._counts(pids)
        return _Taken(
            (terminal.bytes - shown) / taken,
            (self._offered() - offered) / taken,
            {name: (after[name] - before[name]) / taken for name in pids},
            {name: proportional_bytes(pid) for name, pid in pids.items()},
        )

    @contextlib.contextmanager
    def _rule(self) -> Iterator[None]:
        if not self._by_rule:
            yield
            return
        run_fwtop(*_RULE, "--netns", self._arena.victim)
        try:
            yield
        finally:
            run_fwtop("undo", "--all", "--netns", self._arena.victim)

    def _offered(self) -> int:
        return self._arena.lab.arrived()[0] + self._arena.lab.link_full()

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
