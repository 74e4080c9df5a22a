"""What watching costs the watched (P2): packets that the stack drops, and that an application gets.

The screen is opened anew for each of its turns, as a person would, and beside it tcpdump, where it is
installed. Measured is what is left once it has settled: the attack is named, the windows are in use. What
the victim gets while the screen starts is a row of its own.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial

from fwtop.bench.arena import Arena, processor_seconds
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import Program, fwtop_argv
from fwtop.bench.receiver import PORT
from fwtop.bench.terminal import Terminal, process_in
from fwtop.lab.network import VICTIM_INTERFACE

_DROP = ["iptables", "-t", "raw", "-{}", "PREROUTING", "-p", "udp", "--dport", str(PORT), "-j", "DROP"]
_SCREEN, _TCPDUMP = "fwtop", "tcpdump"
_SETTLE_SECONDS = {"": 0.5, _SCREEN: 5.0, _TCPDUMP: 0.5}
_START_SECONDS = 2.0
_MODULES = ("fwtop.console", "fwtop.mitigate.guardian")
_PATIENCE_SECONDS = 20.0
_DROPS, _ALL_IN, _RECEIVES = "raw PREROUTING drop", "raw PREROUTING drop, sender's share in", "UDP received"


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 2), 1.0 if options.quick else 2.0
    with Arena() as arena:
        turns = {watcher: _Drops(arena, watcher, seconds) for watcher in _watchers()}
        rows = [_row(_DROPS, watcher, turn.take) for watcher, turn in turns.items()]
        rows += [_row(_ALL_IN, watcher, turn.all_in) for watcher, turn in turns.items()]
        rows.append(_row("raw PREROUTING drop, while it starts", _SCREEN, partial(_starting, arena), _DROPS))
        rows += [
            _row(_RECEIVES, watcher, partial(_received, arena, watcher, seconds)) for watcher in _watchers()
        ]
        rows.append(Row("processor time of console and guardian", "% of a core", turns[_SCREEN].spent))
        return Document("observe", rounds, measure(rows, rounds), _NOTES)


_NOTES = (
    "raw PREROUTING drop: packets a second of the time in which packets waited for the victim's processor",
    "sender's share in: of all the time; what the screen takes from the processor of the lab's sender counts",
)


def _watchers() -> list[str]:
    return ["", _SCREEN, *([_TCPDUMP] if shutil.which("tcpdump") else [])]


def _row(what: str, watcher: str, rate: Callable[[], float], versus: str | None = None) -> Row:
    return Row(
        f"{what}, {watcher or 'alone'}", "packets/s", rate, f"{versus or what}, alone" if watcher else None
    )


class _Drops:
    """One watcher's turns at a stack that drops in raw PREROUTING; the second row tells of the same turn."""

    def __init__(self, arena: Arena, watcher: str, seconds: float) -> None:
        self._arena, self._watcher, self._seconds = arena, watcher, seconds
        self._all_in = self._spent = 0.0

    def take(self) -> float:
        """Return what is dropped while packets wait."""
        arena = self._arena
        with _dropping(arena), _watching(arena, self._watcher), arena.flooded():
            time.sleep(_SETTLE_SECONDS[self._watcher])
            before, started = self._used(), time.monotonic()
            fed, self._all_in = arena.fed_pps(self._seconds)
            self._spent = (self._used() - before) / (time.monotonic() - started)
        return fed

    def all_in(self) -> float:
        """Return what was dropped in all the time of the same turn."""
        return self._all_in

    def spent(self) -> float:
        """Return what watching took of a processor in the same turn, in per cent."""
        return self._spent * 100

    def _used(self) -> float:
        if self._watcher != _SCREEN:
            return 0.0
        found = [
            process_in(self._arena.victim, name) for name in ("fwtop.console", "fwtop.mitigate.guardian")
        ]
        return sum(processor_seconds(pid) for pid in found if pid is not None)


@contextlib.contextmanager
def _watching(arena: Arena, watcher: str) -> Iterator[None]:
    if watcher == _SCREEN:
        with _screen(arena) as terminal:
            terminal.wait_for(" pps", _PATIENCE_SECONDS)
            yield
    elif watcher == _TCPDUMP:
        capture = ["tcpdump", "-i", VICTIM_INTERFACE, "-n", "-w", "/dev/null"]
        with Program(["ip", "netns", "exec", arena.victim, *capture]):
            yield
    else:
        yield


def _screen(arena: Arena) -> Terminal:
    return Terminal(fwtop_argv("watch", "--netns", arena.victim, "--no-store"))


@contextlib.contextmanager
def _dropping(arena: Arena) -> Iterator[None]:
    on, off = ([word.format(verb) for word in _DROP] for verb in "ID")
    with arena.rules([on], [off]):
        yield


def _starting(arena: Arena) -> float:
    """Return what is dropped in all of the first two seconds of a screen that starts under the flood."""
    with _dropping(arena), arena.flooded():
        started, packets = time.monotonic(), arena.lab.arrived()[0]
        with _screen(arena) as terminal:
            time.sleep(_START_SECONDS)
            rate = (arena.lab.arrived()[0] - packets) / (time.monotonic() - started)
            if not terminal.has(" pps"):
                terminal.wait_for(" pps", _PATIENCE_SECONDS)
        return rate


def _received(arena: Arena, watcher: str, seconds: float) -> float:
    with arena.receiver() as child, _watching(arena, watcher):
        return arena.received_pps(child, seconds, _SETTLE_SECONDS[watcher])
