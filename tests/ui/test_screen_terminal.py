"""The real program on a pseudo-terminal: it leaves the terminal as it found it, whatever ends it."""

from __future__ import annotations

import os
import signal
import termios
from pathlib import Path

import pytest
from screen_terminal import Terminal

LEAVE_ALTERNATE = b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
MOUSE_OFF = b"\x1b[?1000l"


def assert_restored(terminal: Terminal) -> None:
    assert LEAVE_ALTERNATE in terminal.output
    after = terminal.output[terminal.output.rindex(b"\x1b[?1049h") :]
    assert after.index(LEAVE_ALTERNATE) > 0
    assert SHOW_CURSOR in after
    assert MOUSE_OFF in after
    assert termios.tcgetattr(terminal.terminal) == terminal.settings


def last_words(terminal: Terminal) -> str:
    return terminal.output[terminal.output.rindex(LEAVE_ALTERNATE) :].decode()


def test_quit_leaves_a_clean_terminal() -> None:
    with Terminal(FWTOP_DEMO_SCENE="few_sources") as terminal:
        terminal.read_until("Proposals")
        os.write(terminal.controller, b"q")
        assert terminal.wait() == 0
        assert_restored(terminal)
        assert "Traceback" not in last_words(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_leave_a_clean_terminal(number: signal.Signals) -> None:
    with Terminal() as terminal:
        terminal.read_until("Proposals")
        terminal.signal(number)
        assert terminal.wait() == 128 + number
        assert_restored(terminal)
        assert "Traceback" not in last_words(terminal)


def test_crash_gives_one_line_and_a_log() -> None:
    with Terminal(FWTOP_DEMO_FAIL="screen") as terminal:
        assert terminal.wait(15) == 1
        assert_restored(terminal)
        words = last_words(terminal)
        assert "fwtop: the screen failed (ZeroDivisionError" in words
        assert "Traceback" not in words
        log = Path(words.rsplit("details in ", 1)[1].strip())
        text = log.read_text()
        mode = log.stat().st_mode & 0o777
        log.unlink()
        assert "Traceback" in text
        assert mode == 0o600


def test_broken_feed_gives_its_line_and_status() -> None:
    with Terminal(FWTOP_DEMO_FAIL="feed") as terminal:
        assert terminal.wait(15) == 3
        assert_restored(terminal)
        assert last_words(terminal).strip().endswith("fwtop: the observer went away; nothing was changed")


def test_terminal_that_goes_away_ends_the_program() -> None:
    with Terminal() as terminal:
        terminal.read_until("Proposals")
        os.close(terminal.terminal)
        os.close(terminal.controller)
        assert terminal.process.wait(10) is not None


def test_terminal_that_takes_nothing_does_not_hold_the_program() -> None:
    with Terminal(columns=200, rows=50) as terminal:
        terminal.read_until("Proposals")
        unread = 4.0  # the demo sends 20 KiB a second into a buffer of 4 KiB that nobody empties
        with pytest.raises(TimeoutError):
            _wait_unread(terminal, unread)
        terminal.signal(signal.SIGTERM)
        _wait_unread(terminal, 8.0)
        assert terminal.process.returncode == 128 + signal.SIGTERM


def _wait_unread(terminal: Terminal, seconds: float) -> None:
    import subprocess

    try:
        terminal.process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


def test_no_terminal_is_said_in_one_line(tmp_path: Path) -> None:
    import subprocess
    import sys

    from screen_terminal import CLONE, DEMO

    done = subprocess.run(
        [sys.executable, str(DEMO)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CLONE)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "fwtop: the screen needs a terminal; 'fwtop snapshot' works without one\n"


@pytest.mark.parametrize(("arguments", "most"), [((), 40), (("--slow",), 5)])
def test_bytes_to_a_large_busy_terminal(arguments: tuple[str, ...], most: int) -> None:
    with Terminal(*arguments, columns=200, rows=50, FWTOP_DEMO_SCENE="few_sources") as terminal:
        terminal.read_until("Conntrack")
        terminal.read(1.5)
        before, seconds = len(terminal.output), 4.0
        terminal.read(seconds)
        assert 0.5 < (len(terminal.output) - before) / seconds / 1024 <= most
