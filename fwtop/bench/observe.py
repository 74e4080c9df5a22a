"""What watching costs the watched (P2): packets that the stack drops, and that an application gets.

fwtop is started anew for each of its turns, as a person would, and beside it tcpdump, where it is installed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from functools import partial

from fwtop.bench.arena import Arena
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import Program, fwtop_argv
from fwtop.bench.receiver import PORT
from fwtop.lab.network import VICTIM_INTERFACE

_Watching = Callable[[], contextlib.AbstractContextManager[None]]
_DROP = ["iptables", "-t", "raw", "-{}", "PREROUTING", "-p", "udp", "--dport", str(PORT), "-j", "DROP"]


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 2), 0.7 if options.quick else 1.5
    with Arena() as arena:
        rows = [
            _row(what, watcher, partial(rate, arena, seconds), partial(_watching, arena, watcher))
            for what, rate in (("raw PREROUTING drop", _dropped), ("UDP received", _received))
            for watcher in _watchers()
        ]
        return Document("observe", rounds, measure(rows, rounds))


def _watchers() -> list[str]:
    return ["", "fwtop", *(["tcpdump"] if shutil.which("tcpdump") else [])]


def _row(what: str, watcher: str, rate: Callable[[], float], watching: _Watching) -> Row:
    def turn() -> float:
        with watching():
            return rate()

    return Row(f"{what}, {watcher or 'alone'}", "packets/s", turn, f"{what}, alone" if watcher else None)


@contextlib.contextmanager
def _watching(arena: Arena, watcher: str) -> Iterator[None]:
    if watcher == "fwtop":
        argv = fwtop_argv("snapshot", "--netns", arena.victim, "--seconds", "600", "--no-store", "--json")
    elif watcher == "tcpdump":
        capture = ["tcpdump", "-i", VICTIM_INTERFACE, "-n", "-w", "/dev/null"]
        argv = ["ip", "netns", "exec", arena.victim, *capture]
    else:
        yield
        return
    with Program(argv, ready=watcher == "fwtop"):
        yield


def _dropped(arena: Arena, seconds: float) -> float:
    on, off = ([word.format(verb) for word in _DROP] for verb in "ID")
    with arena.rules([on], [off]):
        return arena.arrived_pps(seconds)


def _received(arena: Arena, seconds: float) -> float:
    with arena.receiver() as child:
        return arena.received_pps(child, seconds)
