"""One line on the terminal while something is made ready: what is done, and for how long it has been."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self

_TURNS = "|/-\\"
_TURN_SECONDS = 0.25
_CLEAR = "\r\x1b[K"


class Waiting:
    """Shows the line at once, and until the `with` block ends; none if standard output is no terminal."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)

    def __enter__(self) -> Self:
        """Show the line."""
        if sys.stdout.isatty():
            self._draw()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the line away."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._write(_CLEAR)

    def _turn(self) -> None:
        while not self._ended.wait(_TURN_SECONDS):
            self._draw()

    def _draw(self) -> None:
        passed = time.monotonic() - self._began
        turn = _TURNS[int(passed / _TURN_SECONDS) % len(_TURNS)]
        line = f" {turn} fwtop: {passed:.1f} s  {self._words} …"
        self._write(f"{_CLEAR}{line[: shutil.get_terminal_size().columns - 1]}")

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
