"""What the screen writes to a terminal that is slow while the program ends."""

from __future__ import annotations

import os
import threading

import pytest

from fwtop.ui import terminal
from fwtop.ui.terminal import TerminalFile

LONG = "x" * 300_000  # more than a pipe holds


def test_a_busy_terminal_gets_the_last_of_the_screen() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    file, got = TerminalFile(writing), b""
    file.closing = True
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb"):
        writer = threading.Thread(target=file.write, args=(LONG,))
        writer.start()
        writer.join(2 * terminal._WRITE_SECONDS)  # as long as the terminal reads nothing
        assert writer.is_alive()
        while len(got) < len(LONG):
            got += os.read(reader.fileno(), 1 << 16)
        writer.join()
    assert not file.gone


def test_a_terminal_that_reads_nothing_any_more_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_CLOSE_SECONDS", 0.1)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    file = TerminalFile(writing)
    file.closing = True
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb"):
        assert file.write(LONG) == len(LONG)
    assert file.gone
