"""Steady clients of four real services, who count what they are served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from fwtop.kernel.namespaces import inside

TIMEOUT_SECONDS = 2.0
_QUERY = bytes.fromhex("beef01000001000000000000") + b"\x04www7\x07example\0\0\x01\0\x01"
_CONNECT = bytes.fromhex("101100044d5154540402003c0005") + b"steds"


class Served(Struct, frozen=True):
    """A service: where it listens, what a client sends, and how a right answer begins."""

    name: str
    port: int
    request: bytes
    answer: bytes
    protocol: int = socket.SOCK_STREAM


SERVED = (
    Served("web", 80, b"GET /style.css HTTP/1.0\r\nHost: www.example\r\n\r\n", b"HTTP/1.1 200"),
    Served("ssh", 22, b"SSH-2.0-steady\r\n", b"SSH-2.0"),
    Served("mqtt", 1883, _CONNECT, b"\x20\x02\x00\x00"),
    Served("dns", 53, _QUERY, b"\xbe\xef", socket.SOCK_DGRAM),
)


class Steady:
    """Clients that each ask one service at a steady rate; an answer is noted by the second of its request."""

    def __init__(self, netns: str, host: str, clients: Sequence[str], every_s: float) -> None:
        self._netns, self._host, self._every_s = netns, host, every_s
        self._answers: list[tuple[float, str, bool]] = []
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(client, served), daemon=True)
            for number, client in enumerate(clients)
            for served in [SERVED[number % len(SERVED)]]
        ]

    @contextmanager
    def asking(self) -> Iterator[Steady]:
        """Ask for the duration of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._end.set()
            for thread in self._threads:
                thread.join(TIMEOUT_SECONDS * 2)

    def _run(self, client: str, served: Served) -> None:
        while not self._end.wait(self._every_s):
            began = time.monotonic()
            self._answers.append((began, served.name, self._ask(client, served)))

    def _ask(self, client: str, served: Served) -> bool:
        with inside(self._netns):
            sock = socket.socket(socket.AF_INET, served.protocol)
        with sock:
            sock.settimeout(TIMEOUT_SECONDS)
            try:
                sock.bind((client, 0))
                sock.connect((self._host, served.port))
                sock.sendall(served.request)
                return sock.recv(4096).startswith(served.answer)
            except OSError:
                return False

    def share(self, since: float, until: float) -> dict[str, float]:
        """Return which share of each service's requests of a time was answered rightly."""
        found: dict[str, list[bool]] = {}
        for at, name, answered in [*self._answers]:
            if since <= at < until:
                found.setdefault(name, []).append(answered)
        return {name: sum(each) / len(each) for name, each in found.items()}
