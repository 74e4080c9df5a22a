"""Where a recording also goes, besides its session: JSON lines, metrics, alarms, and its state to systemd."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from fwtop.alarms.config import AlarmConfig
from fwtop.alarms.message import Alarm
from fwtop.console.handoff import Options
from fwtop.console.publish.alarms import Alarms
from fwtop.console.publish.scrapes import RunningTotals, ScrapeServer
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.model.wire import of_plain
from fwtop.render.observation import observation_json


class ServiceState:
    """Writes to a socket that root connected: the sandbox forbids that. Never waits for its reader."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._status = ""
        self._ready = False

    def take(self, snapshot: Snapshot, *, session: str) -> None:
        """Reset the watchdog, and tell what has changed since the last call."""
        lines = ["WATCHDOG=1"]
        if not self._ready:
            lines.append("READY=1")
            self._ready = True
        status = _status(snapshot, session)
        if status != self._status:
            lines.append(f"STATUS={status}")
            self._status = status
        self._send(lines)

    def close(self) -> None:
        """Tell that the recording ends."""
        self._send(["STOPPING=1"])

    def _send(self, lines: list[str]) -> None:
        with suppress(OSError):  # systemd is busy or was replaced: the next tick tries again
            os.write(self._descriptor, "\n".join(lines).encode())


def _status(snapshot: Snapshot, session: str) -> str:
    """Return what seldom changes, so that calm seconds cost systemd nothing but the watchdog."""
    kinds = sorted({attack.title for attack in snapshot.judgement.attacks if attack.ended is None})
    stored = f"session {session}" if session else "not stored"
    if snapshot.judgement.not_judged:
        return f"not judged; {stored}"
    return f"{', '.join(kinds) or 'no attack'}; {stored}"


_STDOUT = 1


class Outputs:
    """What the command line asked for; none of them delays the observation or ends it by failing."""

    def __init__(self, options: Options, stop: Callable[[], None]) -> None:
        """Open them; `stop` ends a recording that is piped to a program when that program ends."""
        self._stop = stop if options.jsonl_fd == _STDOUT else None
        self._lines: JsonLines | None = None
        self._scrapes: ScrapeServer | None = None
        self._alarms: Alarms | None = None
        self._service = None if options.service_fd is None else ServiceState(options.service_fd)
        if options.jsonl_fd is not None:
            self._lines = JsonLines(
                options.jsonl_fd,
                top=options.jsonl_top,
                every_seconds=options.jsonl_seconds,
                most_bytes=options.jsonl_bytes,
            )
        if options.metrics_fd is not None:
            self._scrapes = ScrapeServer(socket.socket(fileno=options.metrics_fd))
        self.totals = None if self._scrapes is None else RunningTotals()
        if options.alarms_fd is not None:
            self._alarms = Alarms(options.alarms_fd, of_plain(AlarmConfig, options.alarms))

    def take(self, snapshot: Snapshot, *, session: str) -> None:
        """Hand a snapshot to every output; returns at once. `session`: what is being written, if anything."""
        if self._service is not None:
            self._service.take(snapshot, session=session)
        if self._alarms is not None:
            self._alarms.take(snapshot, storing=bool(session))
        if self._lines is not None:
            self._lines.take(snapshot)
            if self._lines.ended.is_set() and self._stop is not None:
                self._stop()
        if self._scrapes is not None and self.totals is not None:
            from fwtop.console.publish.metrics import exposition  # few want it, and it takes 14 MB and 0.2 s

            self._scrapes.publish(exposition(snapshot, self.totals))

    def tell(self, alarm: Alarm) -> None:
        """Send an alarm that no snapshot tells."""
        if self._alarms is not None:
            self._alarms.send(alarm)

    def problems(self) -> list[str]:
        """Return a line per output that fails."""
        outputs = (self._lines, self._alarms)
        return [output.problem for output in outputs if output is not None and output.problem]

    def close(self) -> None:
        """Finish what was begun."""
        if self._service is not None:
            self._service.close()
        if self._lines is not None:
            self._lines.close()


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
