"""Guardians, the lab's processes and observers, forked from one process that has imported what they do.

Each runs its module's own `main` with the arguments of its command line, in its namespace. The tests of the
guardian's process and memory, all that run a command, and labs that a command makes start them as the program
does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fwtop.client import discovery
from fwtop.lab import processes
from fwtop.model.paths import ROOT
from tests.kernel.forking import GUARDIAN

PROGRAM = Path(__file__).with_name("forking.py")
ANSWER_SECONDS = 120.0
start_guardian, start_program = discovery.run_starter, processes.start  # what the program does


class Forked:
    """A process that this one didn't start, as far as tests and the lab use a Popen."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None  # nobody knows it but the parent
        with contextlib.suppress(ProcessLookupError):
            self._ended: int | None = os.pidfd_open(pid)
            return
        self._ended = None

    def wait(self, timeout: float | None = None) -> None:
        if self._ended is None:
            return
        if not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        os.close(self._ended)
        self._ended = None

    def send_signal(self, number: int) -> None:
        if self._ended is not None:
            signal.pidfd_send_signal(self._ended, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process to fork from, started when it is needed; it ends when its socket is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(ANSWER_SECONDS)
            with other:
                argv = [sys.executable, "-I", str(PROGRAM), str(ROOT)]
                self._process = subprocess.Popen(argv, stdin=other, stdout=subprocess.DEVNULL, cwd=ROOT)
        return self._socket

    def _fork(self, descriptors: Sequence[int], **asked: Any) -> int:
        """Fork a module with standard streams and a namespace; returns the process."""
        with self._lock:
            connected = self._connected()
            socket.send_fds(connected, [json.dumps(asked).encode()], descriptors)
            return int(connected.recv(64))

    def start(
        self,
        netns: str | None,
        module: str,
        stderr: IO[Any],
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Forked | subprocess.Popen[bytes]:
        """Start a module, with pipes for its requests and answers."""
        if netns is None:  # it builds a lab of its own, of which it is the one process that knows it
            return start_program(None, module, stderr)
        (their_stdin, stdin), (stdout, their_stdout) = os.pipe(), os.pipe()
        with Path("/run/netns", netns).open() as namespace:
            pid = self._fork(
                [their_stdin, their_stdout, stderr.fileno(), namespace.fileno()],
                module=module, netns=netns, arguments=arguments, environment=environment or {},
            )  # fmt: skip
        for descriptor in (their_stdin, their_stdout):
            os.close(descriptor)
        return Forked(pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def start_guardian(self, argv: list[str], netns_descriptor: int) -> subprocess.CompletedProcess[bytes]:
        """Start a guardian: the exit status and the complaint of what starts it."""
        words = argv[argv.index(GUARDIAN) + 1 :]
        reader, writer = os.pipe()
        with open(os.devnull, "r+b") as nothing, os.fdopen(reader, "rb", buffering=0) as told:
            streams = [nothing.fileno(), nothing.fileno(), writer]
            try:
                self._fork([*streams, netns_descriptor], module=GUARDIAN, arguments=words, environment={})
            finally:
                os.close(writer)
            complaint = b""
            while select.select([told], [], [], ANSWER_SECONDS)[0]:
                if not (chunk := told.read(1 << 16)):
                    complaint, _, status = complaint.rpartition(b"\0")
                    return subprocess.CompletedProcess(argv, int(status or -signal.SIGKILL), b"", complaint)
                complaint += chunk
        raise subprocess.TimeoutExpired(argv, ANSWER_SECONDS)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._process.wait(ANSWER_SECONDS)


NURSERY = Nursery()


@contextmanager
def forked_processes() -> Iterator[None]:
    """Fork the guardians, and what labs of this process start, in the block."""
    discovery.run_starter, processes.start = NURSERY.start_guardian, NURSERY.start
    try:
        yield
    finally:
        discovery.run_starter, processes.start = start_guardian, start_program
        NURSERY.close()
