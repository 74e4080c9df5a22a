"""An observation of one host by a separate process, and its results."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from fwtop.model.paths import ROOT
from tests.kernel.conftest import Host, NetnsPair
from tests.kernel.nursery import NURSERY
from tests.kernel.wire import send_datagrams


class Observer:
    """A child process that observes one host."""

    def __init__(self, host: Host, interfaces: list[str], without: str = "", windows: str = "") -> None:
        environment = {"PYTHONPATH": str(ROOT), "FWTOP_WITHOUT": without, "FWTOP_TEST_WINDOWS": windows}
        assert sys.__stderr__ is not None
        self.process = NURSERY.start(
            host.netns, "tests.kernel.observer_process", sys.__stderr__, interfaces, environment
        )
        self.ready = self._answer()

    @property
    def sees_accepted(self) -> bool:
        """Whether BPF programs count accepted packets; before Linux 6.4, NFLOG samples 1 in 64 instead."""
        return self.ready["accepted"] == "netfilter"

    @property
    def detaches_on_close(self) -> bool:
        """Whether closing the last descriptor detaches everything; before Linux 6.6, tc filters remain."""
        return self.sees_accepted and self.ready["ingress"] == "tcx"

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, "the observer ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@contextlib.contextmanager
def observing(host: Host, interfaces: list[str] | None = None, without: str = "") -> Iterator[Observer]:
    observer = Observer(host, [host.interface] if interfaces is None else interfaces, without)
    try:
        observer.ask("poll")
        yield observer
    finally:
        observer.close()


def send(pair: NetnsPair, port: int, count: int, payload: str = "attack", to: str = "") -> None:
    """Send datagrams from the attacker to the victim."""
    send_datagrams(pair.attacker, to or pair.victim.ipv4, port, count, payload)


def samples(answer: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in answer["samples"] if all(row[key] == value for key, value in wanted.items())]


def named(answer: dict[str, Any]) -> dict[str, int]:
    """Drops with a stated reason, but for those of IPv6's own traffic, also while an interface comes up."""
    own = "NOT_SPECIFIED", "IP_INNOROUTES"
    return {key: packets for key, packets in answer["drops"].items() if not any(map(key.__contains__, own))}
