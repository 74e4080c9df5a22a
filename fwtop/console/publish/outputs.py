"""Where a recording also goes, besides its session: JSON lines, metrics, alarms, and its state to systemd.

A slow reader never delays the observation, and a scrape computes nothing: the last text that was published
answers it. Its client may be anybody who reaches the socket, so there is little to get wrong: one request a
connection, few connections at a time, and a limit on the bytes and the time of each.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from fwtop.alarms.message import Alarm, AlarmConfig
from fwtop.console.handoff import DropOptions, Options
from fwtop.console.live import Tap
from fwtop.console.publish.alarms import Alarms
from fwtop.console.publish.drops import DropLog, DropPicker
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.model.wire import of_plain
from fwtop.render.observation import observation_json
from fwtop.stats.ledger import RunningTotals


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
    kinds = sorted({attack.title for attack in snapshot.judgement.harmful if attack.ended is None})
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
        self._totals = None if self._scrapes is None else RunningTotals()
        self._drops = None if options.drops is None else _drop_log(options.drops)
        self.taps: list[Tap] = [one.add for one in (self._totals, self._drops) if one is not None]
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
        if self._scrapes is not None and self._totals is not None:
            from fwtop.console.publish.metrics import exposition  # few want it, and it takes 14 MB and 0.2 s

            self._scrapes.publish(exposition(snapshot, self._totals))

    def tell(self, alarm: Alarm) -> None:
        """Send an alarm that no snapshot tells."""
        if self._alarms is not None:
            self._alarms.send(alarm)

    def problems(self) -> list[str]:
        """Return a line per output that fails."""
        outputs = (self._lines, self._alarms, self._drops)
        return [output.problem for output in outputs if output is not None and output.problem]

    def close(self) -> None:
        """Finish what was begun."""
        if self._service is not None:
            self._service.close()
        for output in (self._lines, self._drops):
            if output is not None:
                output.close()


def _drop_log(options: DropOptions) -> DropLog:
    picker = DropPicker(options.per_second, payload=options.payload)
    files, listener = options.descriptors, None
    if options.is_socket:
        files, listener = (), options.descriptors[0]
    return DropLog(
        picker, files=files, listener=listener, pcapng=options.pcapng, most_bytes=options.most_bytes
    )


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


PATH = b"/metrics"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CLIENTS = 16
_REQUEST_BYTES = 8192
_SCRAPE_SECONDS = 5.0  # for a request and its answer
_CHECK_SECONDS = 1.0


class _Client(Struct):
    until: float
    request: bytes = b""
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


class ScrapeServer:
    """Serves a listening socket from a thread of its own."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._text = b""
        self._clients: dict[socket.socket, _Client] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="scrapes", daemon=True)
        self._thread.start()

    def publish(self, text: bytes) -> None:
        """Answer with this from now on; safe in any thread."""
        self._text = text

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(_CHECK_SECONDS if self._clients else None):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)  # noqa: S101 - tells mypy
                try:
                    if sock is self._listener:
                        self._accept()
                    else:
                        self._advance(sock, self._clients[sock])
                except OSError:
                    self._drop(sock)
            now = time.monotonic()
            for sock in [sock for sock, client in self._clients.items() if client.until < now]:
                self._drop(sock)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        if len(self._clients) >= _CLIENTS:
            sock.close()
            return
        sock.setblocking(False)
        self._clients[sock] = _Client(time.monotonic() + _SCRAPE_SECONDS)
        self._selector.register(sock, selectors.EVENT_READ)

    def _advance(self, sock: socket.socket, client: _Client) -> None:
        if not client.answer:
            data = sock.recv(_REQUEST_BYTES)
            client.request += data
            if not data or len(client.request) > _REQUEST_BYTES:
                self._drop(sock)
                return
            if b"\r\n\r\n" not in client.request:
                return
            client.answer = memoryview(answer(client.request, self._text))
            self._selector.modify(sock, selectors.EVENT_WRITE)
        client.answer = client.answer[sock.send(client.answer) :]
        if not client.answer:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        if sock is self._listener:  # out of descriptors, or the client has gone already
            return
        del self._clients[sock]
        with contextlib.suppress(KeyError):
            self._selector.unregister(sock)
        sock.close()


def answer(request: bytes, text: bytes) -> bytes:
    """Answer an HTTP request."""
    words = request.split(b"\r\n", 1)[0].split(b" ")
    method, path = (words[0], words[1].partition(b"?")[0]) if len(words) == 3 else (b"", b"")
    if method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", b"only GET and HEAD\n"
    elif path != PATH:
        status, body = "404 Not Found", b"the metrics are at /metrics\n"
    elif not text:
        status, body = "503 Service Unavailable", b"nothing has been observed yet\n"
    else:
        status, body = "200 OK", text
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)
