"""fwtop under test, run as a child process from the same copy of the code, perhaps on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from typing import Self

from fwtop.bench.frame import until
from fwtop.kernel.programs import module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_COMMAND_SECONDS = 600.0  # of long lists on a busy machine


def fwtop_argv(*arguments: str) -> list[str]:
    """Return the argv that runs a verb of this copy of fwtop."""
    return module_argv("fwtop", *arguments)


def run_fwtop(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run a verb and return its output; raises FwtopError with its last line of standard error."""
    done = subprocess.run(
        fwtop_argv(*arguments),
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"status {done.returncode}"]
        raise FwtopError(f"fwtop {' '.join(arguments[:3])}: {safe_text(lines[-1].removeprefix('fwtop: '))}")
    return done.stdout.decode("utf-8", "replace")


WIDTH, HEIGHT = 200, 50
_ESCAPES = re.compile(rb"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\x1b\][^\x07]*\x07")
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
        self._environment = {
            **os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(environment or {}),
        }  # fmt: skip
        self._output = bytearray()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
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
                self._output += chunk
                del self._output[:-_KEPT_BYTES]
                self.arrived(chunk)

    def arrived(self, chunk: bytes) -> None:
        """Take output, for those who want to know more of it; called with the lock."""

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

    def __exit__(self, *_: object) -> None:
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
