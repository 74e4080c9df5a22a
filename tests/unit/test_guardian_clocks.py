"""The rules' clocks go on after a failure, and say once what failed."""

from __future__ import annotations

import syslog
from typing import Any

from fwtop.guardian.serving import worker as worker_module
from fwtop.guardian.serving.worker import Worker
from fwtop.model.errors import FwtopError


class FailingClocks:
    """Stands in for a service whose tick fails: of one thing three times, then of another, then not."""

    active: tuple[str, ...] = ("1",)

    def __init__(self) -> None:
        self.failures: list[Exception | None] = [FwtopError("no ipset")] * 3
        self.failures += [ValueError("odd"), None, FwtopError("no ipset")]
        self.ticks = 0

    def tick(self) -> float | None:
        failure = self.failures[self.ticks] if self.ticks < len(self.failures) else None
        self.ticks += 1
        if failure is not None:
            raise failure
        return 0.0 if self.ticks < len(self.failures) else None


def test_failing_clock_is_told_once_until_it_fails_otherwise(monkeypatch, poll_until) -> None:
    said: list[str] = []

    def note(_: int, text: str) -> None:
        said.append(text)

    monkeypatch.setattr(syslog, "syslog", note)
    monkeypatch.setattr(worker_module, "_RETRY_SECONDS", 0.0)
    clocks: Any = FailingClocks()
    worker = Worker()
    worker.own(clocks)
    worker.start()
    poll_until(lambda: clocks.ticks > len(clocks.failures))
    worker.finish()
    worker.wake.close()
    worker._waker.close()
    assert said == ["no ipset", "clocks: ValueError: odd", "no ipset"]
