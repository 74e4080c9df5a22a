"""What the launcher of a console gives back to a terminal."""

from __future__ import annotations

import os
import pty
import signal
import socket
import termios
import tty
from collections.abc import Iterator

import pytest

from fwtop.cli import launcher
from fwtop.console.handoff import Options


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A pseudo-terminal that the launcher takes for its own, and a launcher that needs no root."""
    controller, own = pty.openpty()
    changed = signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTTOU
    handlers = {one: signal.getsignal(one) for one in changed}
    monkeypatch.setattr(launcher, "_terminal_state", lambda: (own, termios.tcgetattr(own)))
    for name in ("require_root", "drop_privileges", "unprivileged_user"):
        monkeypatch.setattr(launcher, name, lambda *_: None)
    monkeypatch.setattr(launcher.namespaces, "enter_named", lambda _: None)
    monkeypatch.setattr(launcher, "start_dissector", lambda: None)
    yield own
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.close(controller)
    os.close(own)


def test_a_terminal_is_given_back_as_it_was_though_the_console_was_the_first_to_run(
    terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the launcher kept the state that the console had made: without echo, after a kill."""
    before = termios.tcgetattr(terminal)

    def started(*_: object) -> int:
        child = os.fork()
        if child == 0:
            signal.pause()
        tty.setraw(terminal)
        os.kill(child, signal.SIGKILL)
        return child

    def prepared(mine: socket.socket, *_: object) -> None:
        mine.close()
        assert not termios.tcgetattr(terminal)[3] & termios.ECHO

    monkeypatch.setattr(launcher, "_start_console", started)
    monkeypatch.setattr(launcher, "_hand_over", prepared)
    assert launcher.launch(Options(mode="tui")) == 128 + signal.SIGKILL
    assert termios.tcgetattr(terminal) == before
