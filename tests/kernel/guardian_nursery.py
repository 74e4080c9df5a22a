"""Guardians forked from one process that has imported the guardian already.

The imports are most of a guardian's start (0.2 s of CPU), and the kernel tests start more than a thousand.
What is forked runs the guardian's own `main` with the arguments of its command line. The tests of the
guardian's process and memory, and all that run a command, start it as the program does.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.client import discovery
from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT
from fwtop.model.paths import ROOT

GUARDIAN = "fwtop.guardian"  # in its command line, by which the tests know a guardian
PROGRAM = Path(__file__).with_name("forking_guardian.py")
ANSWER_SECONDS = 120.0
MOST_BYTES = 1 << 16
start_process = discovery.run_starter  # what the program does


class Nursery:
    """The process to fork guardians from; it ends when its socket is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_SECONDS)
        argv = [sys.executable, "-I", str(PROGRAM), str(ROOT), GUARDIAN]
        with other:
            self._process = subprocess.Popen(
                argv, stdin=other, stdout=subprocess.DEVNULL, env=GUARDIAN_ENVIRONMENT, cwd="/"
            )

    def start(self, argv: list[str], netns_descriptor: int) -> subprocess.CompletedProcess[bytes]:
        """Start a guardian: the exit status and the complaint of what starts it."""
        words = argv[argv.index(GUARDIAN) + 1 :]
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(words).encode()], [netns_descriptor])
            status, _, complaint = self._socket.recv(MOST_BYTES).partition(b" ")
        return subprocess.CompletedProcess(argv, int(status), b"", complaint)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(ANSWER_SECONDS)


@contextmanager
def forked_guardians() -> Iterator[None]:
    """Fork the guardians that this process starts in the block."""
    nursery = Nursery()
    discovery.run_starter = nursery.start
    try:
        yield
    finally:
        discovery.run_starter = start_process
        nursery.close()
