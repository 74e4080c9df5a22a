"""Watching and storing without a screen, until stopped: for a service."""

from __future__ import annotations

import signal
import sys
import threading

from fwtop.console.handoff import Handoff, Options
from fwtop.console.recorder import Recorder
from fwtop.console.wiring import WINDOW_SECONDS, build

_TICK_SECONDS = 1.0


def run_record(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Observe and store until SIGTERM, SIGHUP or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    console = build(options, handoff, descriptors, window_seconds=WINDOW_SECONDS)
    say = _Teller(console.recorder)
    try:
        console.run(stop, _TICK_SECONDS, lambda _snapshot: say.changes())
    finally:
        console.close()
    return 0


class _Teller:
    """Says on standard error where the session is stored, and when it can't be."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._said = ""

    def changes(self) -> None:
        """Say what is new since the last call."""
        if self._recorder is None:
            return
        name = self._recorder.path.stem if self._recorder.path is not None else ""
        line = self._recorder.problem or f"recording session {name}; stop with Ctrl-C or SIGTERM"
        if line != self._said:
            self._said = line
            print(f"fwtop: {line}", file=sys.stderr)
