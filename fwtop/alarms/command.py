"""Run a program for each alarm, one at a time, off the reading thread: the operator's, or sendmail."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable

from fwtop.alarms.message import Alarm
from fwtop.kernel.programs import ENVIRONMENT
from fwtop.model.text import safe_text

_WAITING = 100  # alarms; newer ones are left out while the command can't keep up


class CommandRunner:
    """Queues alarms for a program; `report` gets a line about each one that failed.

    `text` makes of an alarm what the program reads on its standard input.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        seconds: float,
        report: Callable[[str], None],
        text: Callable[[Alarm], bytes] = Alarm.line,
    ) -> None:
        self._argv = argv
        self._text = text
        self._seconds = seconds
        self._report = report
        self._waiting: queue.Queue[Alarm | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run_all, name="command")
        self._thread.start()

    def put(self, alarm: Alarm) -> None:
        """Queue an alarm; returns at once."""
        try:
            self._waiting.put_nowait(alarm)
        except queue.Full:
            self._report(f"the alarm command is too slow: {alarm.event} is left out")

    def close(self) -> None:
        """Wait until what is queued has run."""
        self._waiting.put(None)
        self._thread.join()

    def _run_all(self) -> None:
        while (alarm := self._waiting.get()) is not None:
            if problem := run_command(self._argv, self._text(alarm), self._seconds):
                self._report(problem)


def run_command(argv: tuple[str, ...], text: bytes, seconds: float) -> str:
    """Run a command with a text on its standard input; return what went wrong, "" for nothing.

    What it started is killed with it when its time is up.
    """
    name = safe_text(argv[0], limit=100)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        return f"the alarm command {name} can't be run: {error.strerror}"
    try:
        process.communicate(text, timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"the alarm command {name} was killed after {seconds:g} s"
    return f"the alarm command {name} failed with status {process.returncode}" if process.returncode else ""
