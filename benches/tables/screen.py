"""The cost of the open screen (P4, P5, P10): terminal output, CPU time and memory, at several loads and tabs.

On the calm machine visitors fetch pages and resolve names, and nothing is an attack. The other loads are
floods. The last load is dropped by an XDP rule, as on a machine that survives such a flood; the victim then
takes in all that the lab's sender can produce.

CPU time and bytes are the mean of a window that begins a second after its tab was opened: 10 s, or 3 s with
--quick; always 10 s with --slow, which sends long lists every five seconds or less often. What such a link
gets at worst is a row of its own: the most in any 5 s from the key that opens the tab, first picture and all.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benches.screens import Screen, process_in
from fwtop.bench.frame import Document, Options, Row, measure, until
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.bench.receiver import PORT
from fwtop.bench.testbed import Testbed, flood_text, processor_seconds
from fwtop.lab.processes import Program
from fwtop.model.errors import FwtopError

_PATIENCE_SECONDS = 20.0
_SETTLE_SECONDS = 5.0
_RECORDED_SECONDS = 60.0  # what is stored once a minute, or twice, is in it once, or twice
_CHANGED_SECONDS = 1.0  # after a change of tab
_SLOW_SECONDS = 10.0
_BURST_SECONDS = 5.0  # in which a link's worst bytes are counted
_MODULES = {"console": "fwtop.console", "guardian": "fwtop.guardian"}
TABS = ("Overview", "Traffic", "Packets", "Path", "Rules", "Log")  # in the order of the key below
_NEXT_TAB = "]"
_CALM = "calm, 1,000 packets/s"
_BUSY = "400,000 packets/s"  # full refresh rate, duty cycle 100 %
_FULL, _DRIVER = "unlimited", "unlimited, dropped by XDP"
_LOADS = {"100,000 packets/s": 100_000, _BUSY: 400_000, _FULL: 0, _DRIVER: 0}  # besides clients
_VISITORS = """
title = "ordinary visitors"
seed = 1
firewall = "none"

[[crowd]]
protocol = "http"
clients = 100
rate = 60
paths = ["/", "/style.css", "/logo.svg", "/shop?page=1", "/item/17", "/cart"]
agents = [
  "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
  "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/130.0.0.0 Safari/537.36",
]
"""
_RULE = ("drop", "--proto", "udp", "--dport", str(PORT), "--via", "xdp", "--ttl", "10m", "--yes", "--force")


def run(options: Options) -> Document:
    """Measure the table: in each round one screen per load, and one with --slow."""
    rounds, seconds = options.choose(3, 1), 3.0 if options.quick else 10.0
    with Testbed(_VISITORS) as testbed:
        recorder = _RecorderRun(testbed)
        calm = measure([*_rows(_CALM, _ScreenRun(testbed, seconds, 0, tabs=TABS)), *recorder.rows()], rounds)
    with Testbed(flood_text(sources="198.19.0.0/16", sport="random")) as testbed:
        runs = {
            load: _ScreenRun(
                testbed,
                seconds,
                pps,
                by_rule=load == _DRIVER,
                tabs=TABS if load == _BUSY else TABS[:1],
            )
            for load, pps in _LOADS.items()
        }
        slow = _ScreenRun(testbed, _SLOW_SECONDS, _LOADS[_BUSY], words=("--slow",), tabs=TABS)
        rows = [row for load, screen in runs.items() for row in _rows(load, screen)]
        full = runs[_FULL]
        rows += [Row(f"{name}'s memory (PSS)", "MiB", partial(full.memory, name)) for name in _MODULES]
        rows += _bytes("bytes to the terminal", runs[_BUSY])
        rows.append(Row("--slow: offered", "packets/s", slow.take))
        rows += _bytes("bytes to the terminal, --slow", slow)
        rows += [
            Row(
                f"bytes to the terminal, --slow, {tab}: most in any 5 s",
                "bytes/s",
                partial(slow.figure, "burst", tab),
            )
            for tab in slow.tabs
        ]
        return Document("screen", rounds, (*calm, *measure(rows, rounds)))


def _rows(load: str, screen: _ScreenRun) -> list[Row]:
    """Return the rows of a load: the first runs the screen, the others report the same run."""
    return [
        Row(f"{load}: offered", "packets/s", screen.take),
        *(
            Row(
                f"{load}, {tab}: console's CPU time", "% of a core", partial(screen.processor, "console", tab)
            )
            for tab in screen.tabs
        ),
        Row(f"{load}: guardian's CPU time", "% of a core", partial(screen.processor, "guardian", TABS[0])),
    ]


def _bytes(name: str, screen: _ScreenRun) -> list[Row]:
    return [
        Row(f"{name}, {tab}", "bytes/s", partial(screen.figure, "bytes_per_second", tab))
        for tab in screen.tabs
    ]


class _Measured(Struct, frozen=True):
    """Figures of one tab; by process name: CPU seconds per second, bytes of memory."""

    bytes_per_second: float
    offered_pps: float
    processor: dict[str, float]
    memory: dict[str, int]
    burst: float = 0.0  # most bytes per second in any 5 s since the tab was opened


class _ScreenRun:
    """A screen of 200×50 under one load, on each of the tabs; with `by_rule`, an XDP rule drops the flood."""

    def __init__(
        self,
        testbed: Testbed,
        seconds: float,
        pps: int,
        *,
        tabs: tuple[str, ...],
        words: tuple[str, ...] = (),
        by_rule: bool = False,
    ) -> None:
        self._testbed, self._seconds, self._pps, self._words = testbed, seconds, pps, words
        self._by_rule = by_rule
        self.tabs = tabs
        self.last: dict[str, _Measured] = {}  # by tab

    def take(self) -> float:
        """Open the screen, flood, measure each tab, close; return the offered packets a second."""
        argv = fwtop_argv("watch", "--netns", self._testbed.victim, "--no-store", *self._words)
        with Screen(argv) as terminal:
            terminal.wait_for(" pps", _PATIENCE_SECONDS)
            with self._testbed.flooded(self._pps), self._rule():
                time.sleep(_SETTLE_SECONDS)
                began = time.monotonic()
                for tab in self.tabs:
                    measured = self._measure(terminal)
                    self.last[tab] = replace(measured, burst=terminal.most_in(_BURST_SECONDS, since=began))
                    began = time.monotonic()
                    terminal.press(_NEXT_TAB)
                    time.sleep(_CHANGED_SECONDS)
        return statistics.fmean(measured.offered_pps for measured in self.last.values())

    def _measure(self, terminal: Screen) -> _Measured:
        pids = {name: self._pid(module) for name, module in _MODULES.items()}
        before, started = self._counts(pids), time.monotonic()
        shown, offered = terminal.bytes, self._offered()
        time.sleep(self._seconds)
        taken = time.monotonic() - started
        after = self._counts(pids)
        return _Measured(
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
        run_fwtop(*_RULE, "--netns", self._testbed.victim)
        try:
            yield
        finally:
            run_fwtop("undo", "--all", "--netns", self._testbed.victim)

    def _offered(self) -> int:
        return self._testbed.lab.arrived()[0] + self._testbed.lab.link_full()

    def processor(self, name: str, tab: str) -> float:
        """Return a process's CPU time on a tab in the round's run, in percent of a core."""
        return self.last[tab].processor[name] * 100

    def memory(self, name: str) -> float:
        """Return a process's memory (PSS) in the round's run, in MiB."""
        return max(measured.memory[name] for measured in self.last.values()) / (1 << 20)

    def figure(self, name: str, tab: str) -> float:
        """Return one of the figures of a tab in the round's run."""
        return float(getattr(self.last[tab], name))

    def _pid(self, module: str) -> int:
        pid = process_in(self._testbed.victim, module)
        if pid is None:
            raise FwtopError(f"no {module} runs in the lab; the lab is taken down")
        return pid

    @staticmethod
    def _counts(pids: dict[str, int]) -> dict[str, float]:
        return {name: processor_seconds(pid) for name, pid in pids.items()}


class _RecorderRun:
    """`fwtop record` on the calm machine, as the service runs it, with its process for alarms."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._memory = 0

    def rows(self) -> list[Row]:
        """Return the rows: the first runs the recorder."""
        return [
            Row(f"{_CALM}: recorder's CPU time", "% of a core", self._take),
            Row(f"{_CALM}: recorder's memory (PSS)", "MiB", lambda: self._memory / (1 << 20)),
        ]

    def _take(self) -> float:
        victim = self._testbed.victim
        with Program(fwtop_argv("record", "--netns", victim)) as recorder, self._testbed.flooded(0):
            self._await_console(victim)
            time.sleep(_SETTLE_SECONDS)
            launcher = recorder.process.pid  # whose place the console takes in the service
            children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii")
            pids = [int(pid) for pid in children.split()]
            before, started = sum(map(processor_seconds, pids)), time.monotonic()
            time.sleep(_RECORDED_SECONDS)
            taken = sum(map(processor_seconds, pids)) - before
            self._memory = sum(map(proportional_bytes, pids))
            return taken / (time.monotonic() - started) * 100

    @staticmethod
    def _await_console(victim: str) -> None:
        console = partial(process_in, victim, _MODULES["console"])
        if not until(lambda: console() is not None, _PATIENCE_SECONDS, every=0.1):
            raise FwtopError("no recorder runs in the lab; the lab is taken down")


def proportional_bytes(pid: int) -> int:
    """Return a process's proportional set size in bytes (proc_pid_smaps(5))."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
