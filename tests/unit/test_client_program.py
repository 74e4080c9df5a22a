"""The client for programs, without a guardian."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from fwtop.client import program
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Answer, encode_answer


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_connection_too_many_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_first: bool
) -> None:
    """Also where the guardian closed the connection before the client could ask."""
    inode = os.stat("/proc/self/ns/net").st_ino
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / f"{inode}.api"))
        listener.listen()

        def close_first() -> None:
            with listener.accept()[0] as taken:
                taken.send(encode_answer(Answer(False, "too many connections: close some")))
                taken.shutdown(socket.SHUT_RDWR)
                while taken.recv(1 << 16):  # left unread, it would make the end a reset
                    pass

        closing = threading.Thread(target=close_first)
        closing.start()
        if not asked_first:
            exchange = program.exchange
            monkeypatch.setattr(program, "exchange", lambda *args: closing.join() or exchange(*args))
        with pytest.raises(FwtopError, match="too many connections"):
            program.connect(run_directory=tmp_path)
        closing.join()
