"""The legitimate clients: `python -I -m fwtop.lab.clients`, in the attacker's namespace.

Visitors fetch pages and resolve names, each from its own address and without waiting for earlier answers,
like many people behind one address. The operator types into one long TCP session. A scenario's crowds (floods
with real connections, or a flash crowd) run here as well. Commands are JSON lines: phase NAME, pause, crowd
on/off, move (to other addresses), results, results_by_client. Exits at end of input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct, field

from fwtop.lab import network as net
from fwtop.lab.processes import answer, ignore_terminal_signals
from fwtop.lab.scenario import HELD
from fwtop.lab.traffic.answers import dns_query
from fwtop.lab.traffic.crowds import Crowd, HeldCrowd
from fwtop.lab.traffic.pools import HOSTS, OPERATOR_PORT, PAGES, ZONE, request

_HTTP_SECONDS, _DNS_SECONDS, _ECHO_SECONDS = 1.0, 0.5, 1.0
_KEYSTROKE_SECONDS = 0.05
_MAX_PENDING = 16  # requests per client, so that unanswered ones don't pile up


class Attempts(Struct):
    """Attempts at one kind of request in one phase; `latencies` (seconds) are of the successful ones."""

    tried: int = 0
    latencies: list[float] = field(default_factory=list)

    def add(self, other: Attempts) -> None:
        """Add another's attempts to these."""
        self.tried += other.tried
        self.latencies += other.latencies

    def summary(self) -> dict[str, Any]:
        """Return counts, success rate, and median and 95th percentile latency in milliseconds."""
        ranked = sorted(self.latencies)
        succeeded = len(ranked)
        return {
            "tried": self.tried,
            "succeeded": succeeded,
            "success": succeeded / self.tried if self.tried else None,
            "median_ms": round(ranked[succeeded // 2] * 1000, 3) if ranked else None,
            "p95_ms": round(ranked[min(succeeded - 1, succeeded * 95 // 100)] * 1000, 3) if ranked else None,
        }


class Clients:
    """All legitimate clients, and the results of their attempts."""

    def __init__(self, clients: list[str], operator: str, seed: int, thinking: float) -> None:
        """`thinking` is the mean time in seconds from one attempt of a client to the next."""
        self._clients = clients
        self._thinking = thinking
        self._operator = operator
        self._rng = random.Random(f"clients/{seed}")  # noqa: S311
        self._phase = "before"
        self._attempts: dict[str, dict[tuple[str, str], Attempts]] = {}  # phase → (client, work)
        self._running = asyncio.Event()
        self._running.set()
        self._busy = 0
        self._cuts = 0
        self._handshakes = 0

    def phase(self, name: str) -> None:
        """Count attempts from now on under this name."""
        self._phase = name
        self._running.set()

    def move(self, clients: list[str]) -> None:
        """Let clients go on from these addresses, each at the place of one of the same family."""
        self._clients = clients

    async def pause(self) -> None:
        """Start nothing new, and wait for pending attempts to finish."""
        self._running.clear()
        while self._busy:
            await asyncio.sleep(0.005)

    def results(self) -> dict[str, Any]:
        """Return the results by phase and kind of work."""
        phases = {}
        for phase, by_client in self._attempts.items():
            works: defaultdict[str, Attempts] = defaultdict(Attempts)
            for (_, work), attempts in by_client.items():
                works[work].add(attempts)
            phases[phase] = {work: attempts.summary() for work, attempts in works.items()}
        return {
            "phases": phases,
            "operator_session_cuts": self._cuts,
            "handshakes": self._handshakes,  # finished, whatever came of the request
        }

    def results_by_client(self) -> dict[str, Any]:
        """Return rows of attempts and successes by client and kind of request, for each phase."""
        return {
            phase: [
                {"client": client, "work": work, "tried": made.tried, "succeeded": len(made.latencies)}
                for (client, work), made in by_client.items()
            ]
            for phase, by_client in self._attempts.items()
        }

    def tasks(self) -> list[asyncio.Task[None]]:
        """Start all clients."""
        jobs: list[Awaitable[None]] = [self._operate()]
        for number, address in enumerate(self._clients):
            jobs.append(self._work(number, "http", self._fetch))
            if ":" not in address:
                jobs.append(self._work(number, "dns", self._resolve))
        return [asyncio.ensure_future(job) for job in jobs]

    async def _work(self, number: int, work: str, once: Callable[[str, int], Awaitable[None]]) -> None:
        """Start attempts at random intervals; each client cycles through the pages or names."""
        begun: set[asyncio.Task[bool]] = set()
        turn = self._rng.randrange(60)
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._thinking))
            await self._running.wait()
            if len(begun) < _MAX_PENDING:
                address = self._clients[number]
                task = asyncio.ensure_future(self._try(address, work, once(address, turn)))
                begun.add(task)
                task.add_done_callback(begun.discard)
                turn += 1

    def _try(self, client: str, work: str, action: Awaitable[None]) -> Coroutine[Any, Any, bool]:
        """Return the coroutine that makes an attempt, counted in the present phase."""
        attempts = self._attempts.setdefault(self._phase, {}).setdefault((client, work), Attempts())
        self._busy += 1
        return self._tried(attempts, action)

    async def _tried(self, attempts: Attempts, action: Awaitable[None]) -> bool:
        started = time.monotonic()
        try:
            await action
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return False
        else:
            attempts.latencies.append(time.monotonic() - started)
            return True
        finally:
            attempts.tried += 1
            self._busy -= 1

    async def _fetch(self, address: str, turn: int) -> None:
        async with asyncio.timeout(_HTTP_SECONDS):
            victim = net.VICTIM_6 if ":" in address else net.VICTIM_4
            reader, writer = await asyncio.open_connection(victim, net.PORT_HTTP, local_addr=(address, 0))
            self._handshakes += 1
            try:
                writer.write(request(PAGES[turn % len(PAGES)]))
                while await reader.read(65_536):
                    pass
            finally:
                writer.close()

    async def _resolve(self, address: str, turn: int) -> None:
        loop = asyncio.get_running_loop()
        question = dns_query(self._rng, {"name": f"{HOSTS[turn % len(HOSTS)]}.{ZONE}", "edns": 1232})
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.setblocking(False)
            end.bind((address, 0))
            end.connect((net.VICTIM_4, net.PORT_DNS))
            async with asyncio.timeout(_DNS_SECONDS):
                await loop.sock_sendall(end, question)
                while (await loop.sock_recv(end, 4096))[:2] != question[:2]:
                    pass

    async def _operate(self) -> None:
        """Keep one session open, like an operator's SSH; when it breaks, count the cut and reconnect."""
        port = OPERATOR_PORT
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(_ECHO_SECONDS):
                    reader, writer = await asyncio.open_connection(
                        net.VICTIM_4, net.PORT_SSH, local_addr=(self._operator, port)
                    )
                _linger_none(writer)
                try:
                    await self._type(reader, writer)
                finally:
                    writer.close()
            self._cuts += 1
            port += 1  # the old port may still be in TIME_WAIT
            await asyncio.sleep(0.1)

    async def _type(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        missed = 0

        async def keystroke() -> None:
            sent = self._rng.randbytes(16)
            writer.write(sent)
            async with asyncio.timeout(_ECHO_SECONDS):
                while await reader.readexactly(16) != sent:
                    pass

        while missed < 15:  # seconds of silence until a person gives up
            await asyncio.sleep(_KEYSTROKE_SECONDS)
            await self._running.wait()
            missed = 0 if await self._try(self._operator, "operator", keystroke()) else missed + 1
            if writer.is_closing() or reader.at_eof():
                return


def _linger_none(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _obey(command: dict[str, Any], clients: Clients, crowds: list[Crowd]) -> dict[str, Any]:
    match command["do"]:
        case "phase":
            clients.phase(str(command["name"]))
        case "move":
            clients.move(command["clients"])
        case "pause":
            await clients.pause()
        case "crowd":
            for crowd in crowds:
                crowd.start() if command["on"] else await crowd.stop()
        case "results":
            tried = [{"tried": crowd.tried, "succeeded": crowd.succeeded} for crowd in crowds]
            return {**clients.results(), "crowds": tried}
        case "results_by_client":
            return clients.results_by_client()
    return {"time": time.monotonic()}


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    setup = json.loads(await reader.readline())
    clients = Clients(setup["clients"], setup["operator"], setup["seed"], setup["thinking"])
    crowds = [
        (HeldCrowd if table["protocol"] in HELD else Crowd)(number, table, setup["seed"])
        for number, table in enumerate(setup["crowds"])
    ]
    tasks = clients.tasks()
    answer({"ready": True})
    while line := await reader.readline():
        answer(await _obey(json.loads(line), clients, crowds))
    for task in tasks:
        task.cancel()


def main() -> int:
    """Serve one lab until the end of standard input."""
    ignore_terminal_signals()
    asyncio.run(_serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
