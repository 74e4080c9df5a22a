"""The lab's child processes, each in one of its namespaces, controlled by JSON lines on standard input.

They exit at end of input, so they don't outlive a lab that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from fwtop.kernel.programs import module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_ANSWER_SECONDS = 20.0
READY_SECONDS = 120.0  # while a watcher lives: starting takes that long on a very busy machine


def start(netns: str | None, module: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a module in a namespace (None: in this one), with pipes for its requests and answers."""
    inside = ["ip", "netns", "exec", netns] if netns is not None else []
    return subprocess.Popen(
        [*inside, *module_argv(module)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # the lab handles the terminal's signals
    )


class Child:
    """One child process; every request gets one answer."""

    def __init__(
        self,
        netns: str | None,
        module: str,
        setup: dict[str, Any] | None = None,
        *,
        ready: float = _ANSWER_SECONDS,
        closing: float = 2.0,
    ) -> None:
        """`ready` and `closing` are the seconds that it may take to get ready, and to end by itself."""
        self._module = module
        self._ready, self._closing = ready, closing
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self.process = start(netns, module, self._stderr)
        self._unread = b""
        if setup is not None:
            self._write(setup)

    def wait_ready(self) -> dict[str, Any]:
        """Wait for the first line and return it; raises FwtopError with the child's message."""
        return self._read(self._ready)

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

    def _read(self, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101 - made with a pipe
        while b"\n" not in self._unread:
            if not select.select([self.process.stdout], [], [], seconds)[0]:
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
        said = _text(self._stderr).strip().splitlines()
        reason = safe_text(said[-1]) if said else f"status {self.process.returncode}"
        return FwtopError(f"{self._module} ended: {reason}; the lab is taken down")

    def close(self) -> None:
        """End the child by closing its input, if it takes too long by SIGKILL."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        _await_end(self.process, self._closing)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()


class Program:
    """A program that runs for the duration of the `with` block and gets SIGTERM at its end.

    With `ready`, entering waits for the line that fwtop writes to FWTOP_READY_FD once it is counting.
    """

    def __init__(
        self, argv: list[str], *, ready: bool = False, environment: dict[str, str] | None = None
    ) -> None:
        self._argv, self._ready, self._environment = argv, ready, {**os.environ, **(environment or {})}
        self._said, self._answer = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Program:
        """Start the program; raises FwtopError if it ends before it is ready."""
        reader, writer = os.pipe()
        told = {"FWTOP_READY_FD": str(writer)} if self._ready else {}
        try:
            self.process = subprocess.Popen(
                self._argv,
                env={**self._environment, **told},
                pass_fds=[writer] if self._ready else [],
                stdin=subprocess.DEVNULL,
                stdout=self._answer,
                stderr=self._said,
            )
            os.close(writer)
            if self._ready and not self._is_ready(reader):
                raise self._failure()
        finally:
            os.close(reader)
        return self

    def _is_ready(self, reader: int) -> bool:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if select.select([reader], [], [], 0.1)[0]:
                return bool(os.read(reader, 64))
        return False

    def finish(self, seconds: float) -> str:
        """Wait for the program to end by itself and return its output; raises FwtopError if it fails."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise FwtopError("the watcher did not end in time; the lab is taken down") from None
        if self.process.returncode:
            raise self._failure()
        return _text(self._answer)

    def said(self) -> list[str]:
        """Return the lines of its standard error so far."""
        size = os.fstat(self._said.fileno()).st_size  # the program writes on where the file stands
        return os.pread(self._said.fileno(), size, 0).decode("utf-8", "replace").splitlines()

    def _failure(self) -> FwtopError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        status = self.process.poll() or 0
        last = _text(self._said).strip().splitlines()[-1:] or [
            f"exit status {status}" if status else "not ready in time"
        ]
        self.close()
        reason = safe_text(last[0].removeprefix("fwtop: "))
        return FwtopError(f"watching the victim failed: {reason}", status if 0 < status < 128 else 1)

    def __exit__(self, *_: object) -> None:
        """End the program."""
        self.close()

    def close(self) -> None:
        """End the program."""
        end(self.process)
        self._said.close()
        self._answer.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process by SIGTERM, after 10 s by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    _await_end(process, 10.0)


def _await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=5)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def ignore_terminal_signals() -> None:
    """Ignore SIGINT and SIGHUP: the lab ends its children in order."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def answer(value: dict[str, Any]) -> None:
    """Write one JSON line and flush it."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
