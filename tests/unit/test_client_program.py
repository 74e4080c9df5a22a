"""The client for programs, without a guardian."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from fwtop.client import program
from fwtop.model.errors import FwtopError


def test_a_connection_too_many_is_told_as_such(tmp_path: Path) -> None:
    """The guardian closes it unanswered, and goes on: it must not look like its end."""
    inode = os.stat("/proc/self/ns/net").st_ino
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / f"{inode}.api"))
        listener.listen()

        def close_first() -> None:
            listener.accept()[0].close()

        closing = threading.Thread(target=close_first)
        closing.start()
        with pytest.raises(FwtopError, match="too many connections"):
            program.connect(run_directory=tmp_path)
        closing.join()
