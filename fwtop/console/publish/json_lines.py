"""Observations as JSON lines, for programs that read along: a slow reader never delays the observation."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import stat
import threading
import time

from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.observation import observation_json

_WAITING = 2  # observations that wait for a slow reader; further ones are skipped
_END_SECONDS = 2.0  # for the last lines when the recording ends


class JsonLines:
    """Writes one observation a line to a descriptor, from a thread of its own.

    A file is never longer than `most_bytes`, and a line that does not fit its disk is taken back whole: lines
    resume as soon as there is room, for instance after logrotate's copytruncate. A pipe ends with its reader.
    """

    def __init__(self, descriptor: int, *, top: int, every_seconds: float, most_bytes: int) -> None:
        self._descriptor = descriptor
        self._top = top
        self._every = every_seconds
        self._most = most_bytes
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._due = float("-inf")
        self._waiting: queue.Queue[Snapshot | None] = queue.Queue(_WAITING)
        self.problem = ""  # why lines are missing, in one line; "" while they are written
        self.ended = threading.Event()  # the reader closed the pipe
        self._thread = threading.Thread(target=self._write_all, name="json-lines", daemon=True)
        self._thread.start()

    def take(self, snapshot: Snapshot) -> None:
        """Write a snapshot if it is due; returns at once."""
        now = time.monotonic()
        if now < self._due or self.ended.is_set():
            return
        # A tick may come a little early; intervals are counted from when the line was due.
        self._due = max(self._due + self._every, now + self._every / 2)
        try:
            self._waiting.put_nowait(snapshot)
        except queue.Full:
            self.problem = "the reader of the JSON lines is too slow, so lines are skipped"

    def close(self) -> None:
        """Write what waits, within a limit, and end."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_END_SECONDS)
        self._thread.join(_END_SECONDS)

    def _write_all(self) -> None:
        while (snapshot := self._waiting.get()) is not None and not self.ended.is_set():
            document = observation_json(snapshot, top=self._top)
            line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
            try:
                problem = self._write(line)
                if problem or self._waiting.empty():  # a slow reader stays said until it has caught up
                    self.problem = problem
            except OSError as error:
                self.problem = f"JSON lines have ended: {os.strerror(error.errno or errno.EIO)}"
                if error.errno == errno.EPIPE:
                    self.problem = "JSON lines have ended: their reader closed the pipe"
                self.ended.set()

    def _write(self, line: bytes) -> str:
        """Write a line or nothing; return why nothing was written. Raises OSError if a pipe has ended."""
        if not self._is_file:
            _write_whole(self._descriptor, line)
            return ""
        before = os.fstat(self._descriptor).st_size
        if before + len(line) > self._most:
            return f"the JSON lines have reached their limit of {self._most >> 20:,} MiB: rotate the file"
        try:
            _write_whole(self._descriptor, line)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
                os.lseek(self._descriptor, before, os.SEEK_SET)
            return f"no JSON lines are written ({os.strerror(error.errno or errno.EIO)}); watching goes on"
        return ""


def _write_whole(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
