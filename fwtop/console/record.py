"""Watching and storing without a screen, until stopped: for a service."""

from __future__ import annotations

import signal
import sys
import threading

from fwtop.console.handoff import Handoff, Options
from fwtop.console.wiring import WINDOW_SECONDS, build
from fwtop.model.errors import FwtopError
from fwtop.model.snapshot import Snapshot

_TICK_SECONDS = 1.0


def run_record(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Observe and store until SIGTERM, SIGHUP or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    console = build(options, handoff, descriptors, window_seconds=WINDOW_SECONDS)
    if console.recorder is None:
        console.close()
        raise FwtopError(f"there is nowhere to record to: {console.unstored}")
    _say(f"recording session {console.recorder.session_id}; stop with Ctrl-C or SIGTERM")
    told = ""

    def tell(_snapshot: Snapshot) -> None:
        nonlocal told
        problem = console.recorder.problem if console.recorder is not None else ""
        if problem != told:
            told = problem
            _say(problem or "storing works again")

    try:
        console.run(stop, _TICK_SECONDS, tell)
    finally:
        console.close()
    return 0


def _say(line: str) -> None:
    print(f"fwtop: {line}", file=sys.stderr)
