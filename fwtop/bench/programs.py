"""fwtop under test, run as a child process from the same copy of the code."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from types import TracebackType

from fwtop.kernel.programs import module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_READY_SECONDS = 30.0
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


class Program:
    """A program that runs during a measurement and gets SIGTERM at the end of the `with` block.

    With `ready`, entering waits for the line that fwtop writes to FWTOP_READY_FD once it is counting.
    """

    def __init__(
        self, argv: list[str], *, ready: bool = False, environment: dict[str, str] | None = None
    ) -> None:
        self._argv, self._ready, self._environment = argv, ready, {**os.environ, **(environment or {})}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program

    def __enter__(self) -> Program:
        """Start the program."""
        reader, writer = os.pipe()
        told = {"FWTOP_READY_FD": str(writer)} if self._ready else {}
        try:
            self.process = subprocess.Popen(
                self._argv,
                env={**self._environment, **told},
                pass_fds=[writer] if self._ready else [],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
            )
            os.close(writer)
            if self._ready and not self._is_ready(reader):
                raise self._failure()
        finally:
            os.close(reader)
        return self

    def _is_ready(self, reader: int) -> bool:
        end = time.monotonic() + _READY_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if select.select([reader], [], [], 0.1)[0]:
                return bool(os.read(reader, 64))
        return False

    def _failure(self) -> FwtopError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        self._said.seek(0)
        last = self._said.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["not ready in time"]
        self.close()
        return FwtopError(f"watching failed: {safe_text(last[0])}; the lab is taken down")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program."""
        self.close()

    def close(self) -> None:
        """End the program by SIGTERM, after 10 s by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=5)
        self._said.close()
