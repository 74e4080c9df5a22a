"""Attacks through a DNS server, before and with the playbook: what reaches their target, how clients fare.

A real unbound answers 40 clients, each in a /24 of its own; `fwtop harden resolver` watches it under the
attack, plans, and applies what it planned, as an operator would.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from benches.resolver_lab import ResolverLab
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import run_fwtop

_REFLECTED_PPS, _RANDOM_PPS = 2_000, 6_000  # the second is more than unbound can recurse for
_PLANNING_SECONDS = 6.0  # while the clients go on asking
_KILOBYTE = 1_000
_NOTES = (
    f"reflection: {_REFLECTED_PPS:,} questions/s in one address's name; random names: {_RANDOM_PPS:,}/s "
    "below a zone whose servers are silent",
    "clients: questions answered within three tries of a second, by UDP, or TCP where told to",
)


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(3, 1), 2.0 if options.quick else 4.0
    with ResolverLab() as lab:
        reflection = _Attack(lab, seconds, lambda: lab.reflection(_REFLECTED_PPS))
        names = _Attack(lab, seconds, lambda: lab.random_names(_RANDOM_PPS))
        target, clients = "kB/s at the target", "% answered"
        rows = [
            Row("reflection, as it is", target, reflection.bare),
            Row("reflection, hardened", target, reflection.hardened, "reflection, as it is"),
            Row("clients, reflection as it is", clients, lambda: reflection.success[0]),
            Row("clients, reflection hardened", clients, lambda: reflection.success[1]),
            Row("clients, random names as they are", clients, lambda: names.fared(0)),
            Row("clients, random names hardened", clients, lambda: names.fared(1)),
        ]
        return Document("resolver", rounds, measure(rows, rounds), _NOTES)


class _Attack:
    """One kind of attack; the rows of the clients report the turns of the others."""

    def __init__(
        self, lab: ResolverLab, seconds: float, begin: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._lab, self._seconds, self._begin = lab, seconds, begin
        self.success = [0.0, 0.0]  # % as it is, and hardened

    def bare(self) -> float:
        """Return what reaches the target of a reflection."""
        with self._begin():
            return self._turn(0)

    def hardened(self) -> float:
        """Return the same with the playbook."""
        with self._begin(), self._applied():
            return self._turn(1)

    def fared(self, place: int) -> float:
        """Return how the clients fare, in percent."""
        (self.bare, self.hardened)[place]()
        return self.success[place]

    def _turn(self, place: int) -> float:
        before, started = self._lab.reflected()[1], time.monotonic()
        fared = self._lab.clients(self._seconds)
        passed = time.monotonic() - started
        self.success[place] = fared.success * 100
        return (self._lab.reflected()[1] - before) / passed / _KILOBYTE

    @contextlib.contextmanager
    def _applied(self) -> Iterator[None]:
        asking = threading.Thread(target=self._lab.clients, args=(_PLANNING_SECONDS,))
        asking.start()
        try:
            run_fwtop("harden", "resolver", "--apply", "--yes", "--netns", self._lab.victim)
            yield
        finally:
            asking.join()
            run_fwtop("undo", "--all", "--netns", self._lab.victim)
