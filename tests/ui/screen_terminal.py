"""A terminal of its own for a program: a pseudo-terminal whose output a test reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType

DEMO = Path(__file__).with_name("screen_demo.py")
CLONE = DEMO.parents[2]

_END = b"<no more>"


class Terminal:
    """The demo on a pseudo-terminal; `output` is all that it sent."""

    def __init__(self, *arguments: str, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self.controller, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.settings = termios.tcgetattr(self.terminal)
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO), *arguments],
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            start_new_session=True,
            cwd=CLONE,
            env={**os.environ, "PYTHONPATH": str(CLONE), "TERM": "xterm-256color", **environment},
        )

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal and tell the program."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        for descriptor in (self.controller, self.terminal):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def read(self, seconds: float) -> None:
        """Collect output for at most that long, or until the program ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.controller], [], [], min(left, 0.05))
            if ready:
                self.output += os.read(self.controller, 65536)
            elif self.process.poll() is not None:
                return

    def read_until(self, text: str, seconds: float = 60.0) -> None:
        """Collect output until a text has come."""
        end = time.monotonic() + seconds
        while text.encode() not in self.output:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} did not come; got …{self.output[-400:]!r}")
            self.read(0.1)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        self.process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        """Return the exit status, reading meanwhile."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"still running after {seconds} s")
            self.read(0.1)
        self.read(0.0)  # makes room
        os.write(self.terminal, _END)  # behind the program's last words, which the kernel may still hold
        while not self.output.endswith(_END):
            assert time.monotonic() < end, "the end of the output did not come"
            if select.select([self.controller], [], [], 0.05)[0]:
                self.output += os.read(self.controller, 65536)
        self.output = self.output.removesuffix(_END)
        return self.process.returncode
