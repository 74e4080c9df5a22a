"""The lab's child processes, each in one of its namespaces, controlled by JSON lines on standard input.

They exit at end of input, so they don't outlive a lab that is killed.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import tempfile
from typing import Any

from fwtop.kernel.programs import module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_ANSWER_SECONDS = 20.0


class Child:
    """One child process; every request gets one answer."""

    def __init__(self, netns: str, module: str, setup: dict[str, Any] | None = None) -> None:
        self._module = module
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", netns, *module_argv(module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,  # the lab handles the terminal's signals
        )
        self._unread = b""
        if setup is not None:
            self._write(setup)

    def wait_ready(self) -> dict[str, Any]:
        """Wait for the first line and return it; raises FwtopError with the child's message."""
        return self._read()

    def ask(self, **command: object) -> dict[str, Any]:
        """Send a command and return the answer."""
        self._write(command)
        return self._read()

    def _write(self, value: dict[str, Any]) -> None:
        assert self.process.stdin is not None  # noqa: S101 - made with a pipe
        try:
            self.process.stdin.write(json.dumps(value).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101 - made with a pipe
        while b"\n" not in self._unread:
            if not select.select([self.process.stdout], [], [], _ANSWER_SECONDS)[0]:
                raise FwtopError(f"{self._module} did not answer; the lab is taken down")
            chunk = self.process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
            if not chunk:
                raise self._died()
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FwtopError(str(answer["error"]), int(answer.get("code", 1)))
        return answer

    def _died(self) -> FwtopError:
        self.process.wait(timeout=5)
        self._stderr.seek(0)
        said = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        reason = safe_text(said[-1]) if said else f"status {self.process.returncode}"
        return FwtopError(f"{self._module} ended: {reason}; the lab is taken down")

    def close(self) -> None:
        """End the child by closing its input, after 2 s by SIGKILL."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()


def ignore_terminal_signals() -> None:
    """Ignore SIGINT and SIGHUP: the lab ends its children in order."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def answer(value: dict[str, Any]) -> None:
    """Write one JSON line and flush it."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
