"""Run a program for each alarm, one at a time, off the reading thread: the operator's, or sendmail."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from fwtop.alarms.message import Alarm
from fwtop.kernel.programs import ENVIRONMENT
from fwtop.model.text import safe_text

_WAITING = 100  # alarms; newer ones are left out while the command can't keep up
_LOOK_SECONDS = 1.0  # until a running command hears that the recording ends


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
        self._waiting: queue.SimpleQueue[Alarm | None] = queue.SimpleQueue()
        self._ends_at = float("inf")  # time.monotonic()
        self._thread = threading.Thread(target=self._run_all, name="command")
        self._thread.start()

    def put(self, alarm: Alarm) -> None:
        """Queue an alarm; returns at once."""
        if self._waiting.qsize() < _WAITING:
            self._waiting.put(alarm)
        else:
            self._report(f"the alarm command is too slow: {alarm.event} is left out")

    def end(self, at: float) -> None:
        """Let it end once its queue is empty, but not after `at` (time.monotonic())."""
        self._ends_at = at
        self._waiting.put(None)

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run_all(self) -> None:
        left_out = 0
        while (alarm := self._waiting.get()) is not None:
            if time.monotonic() >= self._ends_at:
                left_out += 1
            elif problem := run_command(self._argv, self._text(alarm), self._seconds, lambda: self._ends_at):
                self._report(problem)
        if left_out:
            self._report(f"the alarm command is too slow: {left_out} alarms are left out as recording ends")


def run_command(
    argv: tuple[str, ...], text: bytes, seconds: float, ends_at: Callable[[], float] = lambda: float("inf")
) -> str:
    """Run a command with a text on its standard input; return what went wrong, "" for nothing.

    When its time is up, or by time.monotonic() what `ends_at` returns, its process group is killed.
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
    began = time.monotonic()
    unsent: bytes | None = text
    while (left := min(began + seconds, ends_at()) - time.monotonic()) > 0:
        try:
            process.communicate(unsent, timeout=min(left, _LOOK_SECONDS))
        except subprocess.TimeoutExpired:
            unsent = None  # it is being sent
        else:
            failed = f"the alarm command {name} failed with status {process.returncode}"
            return failed if process.returncode else ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return f"the alarm command {name} was killed after {round(time.monotonic() - began, 1):g} s"
