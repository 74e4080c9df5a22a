"""One line on the terminal while something is made ready: what is done, and for how long it has been."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_TURNS = "|/-\\"
_TURN_SECONDS = 0.25
CLEAR_LINE = "\r\x1b[K"


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Show the line at once, and until the `with` block ends; none if standard output is no terminal."""
    if not sys.stdout.isatty():
        yield
        return
    began, ended = time.monotonic(), threading.Event()

    def turn() -> None:
        passed = 0.0
        while True:
            line = f" {_TURNS[int(passed / _TURN_SECONDS) % 4]} fwtop: {passed:.1f} s  {words} …"
            print(f"{CLEAR_LINE}{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
            if ended.wait(_TURN_SECONDS):
                break
            passed = time.monotonic() - began

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print(CLEAR_LINE, end="", flush=True)
