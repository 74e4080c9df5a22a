"""The real program on a pseudo-terminal: it leaves the terminal as it found it, whatever ends it."""

from __future__ import annotations

import os
import re
import signal
import termios
from pathlib import Path

import pytest
from screen_hostile import FORBIDDEN, OWNED
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
        terminal.read_until("REACHES")
        os.write(terminal.controller, b"q")
        assert terminal.wait() == 0
        assert_restored(terminal)
        assert "Traceback" not in last_words(terminal)


def test_the_terminal_tells_its_size_not_the_environment() -> None:
    with Terminal(columns=120, rows=40, COLUMNS="80", LINES="24") as terminal:
        terminal.read_until("REACHES")
        terminal.read_until("\x1b[40;1H")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_leave_a_clean_terminal(number: signal.Signals) -> None:
    with Terminal() as terminal:
        terminal.read_until("REACHES")
        terminal.signal(number)
        assert terminal.wait() == 128 + number
        assert_restored(terminal)
        assert "Traceback" not in last_words(terminal)


def test_crash_gives_one_line_and_a_log() -> None:
    with Terminal(FWTOP_DEMO_FAIL="screen") as terminal:
        assert terminal.wait() == 1
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
        assert terminal.wait() == 3
        assert_restored(terminal)
        assert last_words(terminal).strip().endswith("fwtop: the observer went away; nothing was changed")


def test_terminal_that_goes_away_ends_the_program() -> None:
    with Terminal() as terminal:
        terminal.read_until("REACHES")
        os.close(terminal.terminal)
        os.close(terminal.controller)
        assert terminal.process.wait(60) is not None


def test_a_process_that_is_continued_reads_its_terminal_once_and_ends_with_it() -> None:
    """The kernel continues whom it tells of a hangup (tty_signal_session_leader in tty_jobctrl.c)."""
    with Terminal() as terminal:
        terminal.read_until("REACHES")
        for _ in range(3):
            terminal.signal(signal.SIGCONT)
            terminal.read_until("REACHES")
        os.close(terminal.terminal)
        os.close(terminal.controller)
        assert terminal.process.wait(30) is not None


def test_terminal_that_takes_nothing_does_not_hold_the_program() -> None:
    with Terminal(columns=200, rows=50) as terminal:
        terminal.read_until("REACHES")
        unread = 4.0  # the demo sends 20 KiB a second into a buffer of 4 KiB that nobody empties
        with pytest.raises(TimeoutError):
            _wait_unread(terminal, unread)
        terminal.signal(signal.SIGTERM)
        _wait_unread(terminal, 60.0)
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
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CLONE)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "fwtop: the screen needs a terminal; 'fwtop snapshot' works without one\n"


@pytest.mark.parametrize(("arguments", "most"), [((), 15), (("--slow",), 3)])
def test_bytes_to_a_large_busy_terminal(arguments: tuple[str, ...], most: int) -> None:
    with Terminal(*arguments, columns=200, rows=50, FWTOP_DEMO_SCENE="few_sources") as terminal:
        terminal.read_until("REACHES")
        terminal.read(1.5)
        before, seconds = len(terminal.output), 4.0
        terminal.read(seconds)
        assert 0 < (len(terminal.output) - before) / seconds / 1024 <= most


def test_six_columns_under_a_dialog_cost_neither_memory_nor_the_way_out() -> None:
    with Terminal(FWTOP_DEMO_SCENE="few_sources") as terminal:
        terminal.read_until("REACHES")
        os.write(terminal.controller, b"b")
        terminal.read_until("Install")
        before = resident_bytes(terminal)
        for columns, rows in ((6, 24), (1, 1), (400, 120), (6, 3), (5, 60)):
            terminal.resize(columns, rows)
            terminal.read(0.7)
        assert resident_bytes(terminal) - before < 40 << 20
        terminal.signal(signal.SIGTERM)
        assert terminal.wait() == 128 + signal.SIGTERM
        assert_restored(terminal)


def resident_bytes(terminal: Terminal) -> int:
    status = Path(f"/proc/{terminal.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) << 10


def test_quitting_prints_session_peak_and_what_remains() -> None:
    with Terminal() as terminal:
        terminal.read_until("REACHES")
        os.write(terminal.controller, b"q")
        terminal.read_until("Keep and quit")
        os.write(terminal.controller, b"\x1b[C\r")
        assert terminal.wait() == 0
        lines = last_words(terminal).split("\x1b")[-1].replace("\r", "").splitlines()
        shown = [line for line in lines if line.strip()]
        assert len(shown) == 3, shown  # and nothing after the last of them
        assert "session 2026-09-21T14-13-20-web1" in shown[0]
        assert "(UDP flood)" in shown[1]
        assert "; to remove: sudo fwtop undo" in shown[2]


_OWN = re.compile(  # what the program sends besides text
    rb"\x1b\[(?:\d+;\d+H|[\d;]*m|\d*J|\?\d+(?:;\d+)*[hl]|\?\d+\$p|[<>=?]\d*u|[>?]?\d*[cq])"
    rb"|\x1b\]22;[a-z]*\x07|\x1b\]52;c;[A-Za-z0-9+/=]*\x07|[\r\n]"
    rb"|\x1b\[2[23];2t|\x1b\]2;(?=[^\x00-\x1f\x7f]*\x07)|\x07"  # a title, whose text stays, and bells
)
TAB_KEYS = {
    "overview": (
        b"1",
        b"\x1b",
        b"A",
        b"\x1b",
        b"a",
        b"\x1b",
        b"u",
        b"\x1b",
        b"+",
        b"\x1b",
        b":x \r",
        b"\x1b",
    ),
    "traffic": (b"b", b"\x1b", b"v", b"v", b"v", b"v", b"v", b"r", b"\x1b", b"v", b"v", b"r", b"\x1b"),
    "packets": (b"r", b"\x1b", b"d", b"\x1b", b"w", b"/bad ==\r", b"\x1b"),
    "path": (b"r", b"\x1b", b"j", b"\t", b"r", b"\x1b"),
    "rules": (b"r", b"\x1b", b"w", b"\x1b", b"c", b"\x1b"),
    "log": (b"r", b"\x1b", b"e", b"\r", b"Y"),
}


@pytest.mark.one_each("size0")
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_hostile_text_in_every_field_stays_text(size: tuple[int, int]) -> None:
    """On each tab and in each dialog, nothing but the program's own sequences reaches the terminal."""
    with Terminal(columns=size[0], rows=size[1], FWTOP_DEMO_SCENE="hostile") as terminal:
        terminal.read_until("REACHES")
        for keys in TAB_KEYS.values():
            for key in keys:
                os.write(terminal.controller, key)
                terminal.read(0.15)  # Escape alone takes 0.1 s to be told from a sequence
            os.write(terminal.controller, b"]")
            terminal.read(0.4)
        terminal.signal(signal.SIGTERM)
        assert terminal.wait() == 128 + signal.SIGTERM, terminal.output[-500:]
    text = _OWN.sub(b"", terminal.output).decode()
    assert OWNED.encode() not in b"".join(_OWN.findall(terminal.output))
    assert not [character for character in text if not character.isprintable() or character in FORBIDDEN]
    assert OWNED in text, "the hostile text was shown, as text"
