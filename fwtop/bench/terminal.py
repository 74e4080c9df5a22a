"""A program on a pseudo-terminal: counts and times its output, and sends keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType

from fwtop.bench.cells import Cells
from fwtop.bench.frame import until
from fwtop.kernel.namespaces import NETNS
from fwtop.model.errors import FwtopError

WIDTH, HEIGHT = 200, 50
_ESCAPES = re.compile(rb"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\x1b\][^\x07]*\x07")
_KEPT_ARRIVALS = 1 << 14  # newest reads
_KEPT_BYTES = 1 << 20  # newest output, for searching


class Terminal:
    """Runs `argv` on a terminal for the duration of the `with` block."""

    def __init__(
        self,
        argv: list[str],
        environment: dict[str, str] | None = None,
        size: tuple[int, int] = (WIDTH, HEIGHT),
    ) -> None:
        self._argv = argv
        self._size = size
        self._cells = Cells(*size)
        self._environment = {
            **os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(environment or {}),
        }  # fmt: skip
        self.bytes = 0
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_KEPT_ARRIVALS)  # monotonic time, bytes
        self._output = bytearray()
        self._lock = threading.Lock()

    def __enter__(self) -> Terminal:
        """Start the program."""
        self.started = time.monotonic()
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execve(self._argv[0], self._argv, self._environment)  # noqa: S606 - no shell: a list of words
        width, height = self._size
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._ending = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        while not self._ending.is_set():
            if not select.select([self._end], [], [], 0.1)[0]:
                continue
            try:
                chunk = os.read(self._end, 65_536)
            except OSError:  # the last program on the terminal is gone
                return
            with self._lock:
                self.bytes += len(chunk)
                self._arrivals.append((time.monotonic(), len(chunk)))
                self._output += chunk
                del self._output[:-_KEPT_BYTES]
                self._cells.feed(chunk)

    def most_in(self, seconds: float, *, since: float) -> float:
        """Return the most bytes a second that arrived in any window of that length since a monotonic time."""
        with self._lock:
            arrivals = [(at, size) for at, size in self._arrivals if at >= since]
        first, held, most = 0, 0, 0
        for at, size in arrivals:
            held += size
            while arrivals[first][0] <= at - seconds:
                held -= arrivals[first][1]
                first += 1
            most = max(most, held)
        return most / seconds

    def screen(self) -> str:
        """Return what the terminal shows."""
        with self._lock:
            return "\n".join(self._cells.lines())

    def wait_to_show(self, pattern: str, seconds: float) -> float:
        """Wait until the screen matches and return the monotonic time; raises FwtopError on timeout."""
        if not until(lambda: re.search(pattern, self.screen(), re.MULTILINE), seconds, every=0.01):
            raise FwtopError(
                f"the screen did not show {pattern!r} within {seconds:g} s; the lab is taken down"
            )
        return time.monotonic()

    def forget(self) -> None:
        """Discard the output so far: `has` and `wait_for` then see only what follows."""
        with self._lock:
            self._output.clear()

    def has(self, text: str) -> bool:
        """Whether a text was written since the start or the last `forget`; escapes are ignored."""
        with self._lock:
            output = bytes(self._output)
        return text.encode() in _ESCAPES.sub(b"", output)

    def wait_for(self, text: str, seconds: float) -> float:
        """Wait for a text and return the monotonic time; raises FwtopError on timeout."""
        if not until(lambda: self.has(text), seconds, every=0.005):
            raise FwtopError(f"{text!r} was not on the screen within {seconds:g} s; the lab is taken down")
        return time.monotonic()

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._end, keys.encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program by SIGTERM, else SIGKILL; its output is drained so that it can't block on it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if until(self._is_gone, 5):
                break
        self._ending.set()
        self._reader.join(timeout=2)
        os.close(self._end)

    def _is_gone(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True


def process_in(netns: str, module: str) -> int | None:
    """Return the pid of the process in a named namespace that runs a Python module, or None."""
    wanted = (NETNS / netns).stat().st_ino
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if module.encode() in words and os.stat(entry / "ns/net").st_ino == wanted:
                return int(entry.name)
    return None
