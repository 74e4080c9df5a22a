"""The cost of watching (P2): packets that the stack drops, and datagrams that an application receives.

The screen is opened afresh for each of its turns, and compared with tcpdump where that is installed. Measured
is the steady state: the attack has been named, the duty cycle is in effect. Startup has a row of its own.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial

from benches.screens import Screen, process_in
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import fwtop_argv
from fwtop.bench.receiver import PORT
from fwtop.bench.testbed import Testbed, processor_seconds
from fwtop.lab.network import VICTIM_INTERFACE
from fwtop.lab.processes import Program
from fwtop.lab.run import Lab

_DROP = ["iptables", "-t", "raw", "-{}", "PREROUTING", "-p", "udp", "--dport", str(PORT), "-j", "DROP"]
_SCREEN, _TCPDUMP = "fwtop", "tcpdump"
_SETTLE_SECONDS = {"": 0.5, _SCREEN: 5.0, _TCPDUMP: 0.5}
_START_SECONDS = 2.0
_MODULES = ("fwtop.console", "fwtop.guardian")
_PATIENCE_SECONDS = 20.0
_DROPS, _WALL_CLOCK, _RECEIVES = "raw PREROUTING drop", "raw PREROUTING drop, wall clock", "UDP received"


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 2), 1.0 if options.quick else 2.0
    with Testbed() as testbed:
        turns = {watcher: _Drops(testbed, watcher, seconds) for watcher in _watchers()}
        rows = [_row(_DROPS, watcher, turn.take) for watcher, turn in turns.items()]
        rows += [
            _row(_WALL_CLOCK, watcher, partial(getattr, turn, "wall_clock"))
            for watcher, turn in turns.items()
        ]
        start = _Start(testbed)
        rows.append(_row(f"{_DROPS}, while it starts", _SCREEN, start.take, _DROPS))
        rows.append(_row(f"{_WALL_CLOCK}, while it starts", _SCREEN, lambda: start.wall_clock, _WALL_CLOCK))
        rows += [
            _row(_RECEIVES, watcher, partial(_received, testbed, watcher, seconds)) for watcher in _watchers()
        ]
        rows.append(Row("CPU time of console and guardian", "% of a core", lambda: turns[_SCREEN].spent))
        return Document("observe", rounds, measure(rows, rounds), _NOTES)


_NOTES = (
    "raw PREROUTING drop: packets per second of the time in which packets were queued for the victim's CPU",
    "wall clock: per second of all time, which includes CPU time that the screen takes from the lab's sender",
)


def _watchers() -> list[str]:
    return ["", _SCREEN, *([_TCPDUMP] if shutil.which("tcpdump") else [])]


def _row(what: str, watcher: str, rate: Callable[[], float], versus: str | None = None) -> Row:
    return Row(
        f"{what}, {watcher or 'alone'}", "packets/s", rate, f"{versus or what}, alone" if watcher else None
    )


def _queued_pps(lab: Lab, seconds: float) -> tuple[float, float]:
    """Return packets per second of the time in which packets were queued, and of wall-clock time.

    A network card keeps receiving while CPUs are busy, but the lab's sender needs a CPU itself. When it
    loses that CPU, the victim's short queue runs dry and its receiving thread sleeps. The first figure
    excludes that time: it counts only the time in which the thread ran or was runnable.
    """
    packets, started = lab.arrived()[0], time.monotonic()
    runnable = lab.receiving_seconds(waited=True)
    time.sleep(seconds)
    packets = lab.arrived()[0] - packets
    runnable = lab.receiving_seconds(waited=True) - runnable
    passed = time.monotonic() - started
    return packets / max(runnable, 1e-6), packets / passed


class _Drops:
    """One watcher's turns at a stack that drops in raw PREROUTING; the later rows report the same turn."""

    def __init__(self, testbed: Testbed, watcher: str, seconds: float) -> None:
        self._testbed, self._watcher, self._seconds = testbed, watcher, seconds
        self.wall_clock = 0.0  # drops per wall-clock second of the same turn
        self.spent = 0.0  # CPU time of console and guardian in it, in percent of a core

    def take(self) -> float:
        """Run a turn; return drops per second of the time in which packets were queued."""
        testbed = self._testbed
        with _dropping(testbed), _watching(testbed, self._watcher), testbed.flooded():
            time.sleep(_SETTLE_SECONDS[self._watcher])
            before, started = self._used(), time.monotonic()
            fed, self.wall_clock = _queued_pps(testbed.lab, self._seconds)
            self.spent = 100 * (self._used() - before) / (time.monotonic() - started)
        return fed

    def _used(self) -> float:
        if self._watcher != _SCREEN:
            return 0.0
        found = [process_in(self._testbed.victim, name) for name in _MODULES]
        return sum(processor_seconds(pid) for pid in found if pid is not None)


@contextlib.contextmanager
def _watching(testbed: Testbed, watcher: str) -> Iterator[None]:
    if watcher == _SCREEN:
        with _screen(testbed) as terminal:
            terminal.wait_for(" pps", _PATIENCE_SECONDS)
            yield
    elif watcher == _TCPDUMP:
        capture = ["tcpdump", "-i", VICTIM_INTERFACE, "-n", "-w", "/dev/null"]
        with Program(["ip", "netns", "exec", testbed.victim, *capture]):
            yield
    else:
        yield


def _screen(testbed: Testbed) -> Screen:
    return Screen(fwtop_argv("watch", "--netns", testbed.victim, "--no-store"))


@contextlib.contextmanager
def _dropping(testbed: Testbed) -> Iterator[None]:
    on, off = ([word.format(verb) for word in _DROP] for verb in "ID")
    with testbed.rules([on], [off]):
        yield


class _Start:
    """The first two seconds of a screen that is opened under the flood."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self.wall_clock = 0.0  # drops per wall-clock second of the same start

    def take(self) -> float:
        """Open a screen; return drops per second of the time in which packets were queued."""
        with _dropping(self._testbed), self._testbed.flooded(), _screen(self._testbed) as terminal:
            fed, self.wall_clock = _queued_pps(self._testbed.lab, _START_SECONDS)
            if not terminal.has(" pps"):
                terminal.wait_for(" pps", _PATIENCE_SECONDS)
        return fed


def _received(testbed: Testbed, watcher: str, seconds: float) -> float:
    with testbed.receiver() as child, _watching(testbed, watcher), testbed.flooded():
        time.sleep(_SETTLE_SECONDS[watcher])
        return per_second(lambda: int(child.ask(do="count")["datagrams"]), seconds)


def per_second(count: Callable[[], int], seconds: float) -> float:
    """Return the rate at which a counter grows, measured over some seconds."""
    first, started = count(), time.monotonic()
    time.sleep(seconds)
    last, ended = count(), time.monotonic()
    return float(last - first) / (ended - started)
