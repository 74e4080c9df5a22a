"""Crowds: clients with real connections from many addresses, an attack or a flash crowd."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from typing import Any

from fwtop.lab import network as net
from fwtop.lab.traffic.pools import public_address

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


class Crowd:
    """One crowd of a scenario, made of workers that share its rate evenly."""

    def __init__(self, number: int, table: dict[str, Any], seed: int) -> None:
        self._table = table
        self._addresses = addresses(number, int(table["clients"]), seed)
        self._rng = random.Random(f"crowd/{seed}/{number}/pace")  # noqa: S311
        self._tasks: list[asyncio.Task[None]] = []
        self.tried = self.succeeded = 0

    def start(self) -> None:
        """Start the workers."""
        pause = _WORKERS / float(self._table["rate"])
        self._tasks = [asyncio.ensure_future(self._worker(pause)) for _ in range(_WORKERS)]

    async def stop(self) -> None:
        """Cancel the workers and wait for them."""
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
