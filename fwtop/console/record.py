"""Watching and storing without a screen, until stopped: for a service."""

from __future__ import annotations

import signal
import threading

from fwtop.console.handoff import Handoff, Options
from fwtop.console.wiring import WINDOW_SECONDS, build, warn
from fwtop.model.errors import FwtopError

_TICK_SECONDS = 1.0


def run_record(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Observe and store until SIGTERM, SIGHUP or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    console = build(options, handoff, descriptors, window_seconds=WINDOW_SECONDS)
    if console.recorder is None:
        console.close()
        raise FwtopError("sessions can't be stored here (see above), so there is nothing to record to")
    warn(f"recording session {console.recorder.session_id}; stop with Ctrl-C or SIGTERM")
    try:
        console.run(stop, _TICK_SECONDS, lambda _snapshot: None)
    finally:
        console.close()
    return 0
