"""A server, the innocents that it lives with, and a forger that floods it in their names.

In the far namespace live visitors and the innocents whose addresses an attacker may name; each sends requests
of its own and counts what is answered. The victim itself asks a resolver that no resolv.conf names. The
forger's packets look like those of clients: the same TTL, options, window, ports and lengths.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import cast

from msgspec import Struct

from benches.resolver_lab import query
from benches.two_hosts import TwoHosts
from fwtop.kernel.namespaces import inside
from fwtop.lab import namespaces
from fwtop.lab.network import VICTIM_4, VICTIM_INTERFACE

_HTTP, _SSH, _CALLS, _DNS = 80, 22, 4500, 53
_TIMEOUT_SECONDS = 3.0  # of a request: with one SYN lost it succeeds, with two it doesn't
_COUNTERS = """table ip late {
 counter late-tcp { }
 counter late-udp { }
 counter late-icmp { }
 chain in {
  type filter hook input priority 400
  tcp flags & rst == 0 counter name late-tcp
  ip protocol udp counter name late-udp
  ip protocol icmp counter name late-icmp
 }
}
"""


class Innocent(Struct, frozen=True):
    """Somebody with addresses of their own; `work`: what each address does, every so many seconds."""

    name: str
    addresses: tuple[str, ...]
    work: tuple[tuple[str, float], ...]


RESOLVER = "9.9.9.9"
INNOCENTS = (
    Innocent("monitor", ("185.31.8.5",), (("http", 1.0), ("ping", 1.0))),
    Innocent("CDN", tuple(f"151.101.{number}.{7 + number}" for number in range(20)), (("http", 0.7),)),
    Innocent("resolver", (RESOLVER,), (("asked", 0.4),)),
    Innocent("payment webhook", ("54.187.174.169",), (("http", 4.0),)),
    Innocent("office NAT", ("80.187.4.20",), (("http", 0.3), ("call", 0.04))),
    Innocent("search crawler", ("66.249.66.1",), (("http", 0.5),)),
    Innocent("operator's second address", ("91.12.33.44",), (("login", 1.5), ("http", 3.0))),
)
VISITORS = Innocent(
    "visitors", tuple(f"93.{100 + number}.8.{number + 1}" for number in range(20)),
    (("http", 1.0), ("call", 0.5)),
)  # fmt: skip


class Bystanders(TwoHosts):
    """The namespaces with servers and innocents at work, for the duration of the `with` block."""

    def __init__(self) -> None:
        self._everybody = (*INNOCENTS, VISITORS)
        super().__init__(address for one in self._everybody for address in one.addresses)
        self._done: dict[str, list[tuple[float, bool]]] = defaultdict(list)  # when begun, whether served
        self._over = threading.Event()
        self._loop = threading.Thread(target=lambda: asyncio.run(self._live()), name="bystanders")

    def close(self) -> None:
        """Let everybody stop, then take the namespaces down."""
        self._over.set()
        if self._loop.is_alive():
            self._loop.join()
        super().close()

    def served(self, name: str, began: float, ended: float) -> float:
        """Return the share of the requests begun between two monotonic times that were answered."""
        found = [is_served for at, is_served in list(self._done[name]) if began <= at < ended]
        return sum(found) / len(found) if found else 1.0

    def passed(self, protocol: str) -> int:
        """Return how many packets of tcp, udp or icmp have passed all firewalls of the victim so far."""
        return self.counted(self.victim, "ip", "late", f"late-{protocol}")[0]

    def _serve(self) -> None:
        namespaces.run("ip", "netns", "exec", self.victim, "nft", "-f", "-", text=_COUNTERS)
        self._loop.start()

    async def _live(self) -> None:
        async with contextlib.AsyncExitStack() as servers:
            for netns, address, port in (
                (self.victim, VICTIM_4, _HTTP), (self.victim, VICTIM_4, _SSH),
            ):  # fmt: skip
                listener = self._socket(netns, socket.SOCK_STREAM, address, port)
                listener.listen(512)
                server = await asyncio.start_server(_answer, sock=listener)
                servers.push_async_callback(server.wait_closed)
                servers.callback(server.close)
            loop = asyncio.get_running_loop()
            for netns, address, port in ((self.victim, VICTIM_4, _CALLS), (self.attacker, RESOLVER, _DNS)):
                sock = self._socket(netns, socket.SOCK_DGRAM, address, port)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
                transport, _ = await loop.create_datagram_endpoint(_Echo, sock=sock)
                servers.callback(transport.close)
            works: dict[str, Callable[[str], Awaitable[bool]]] = {
                "http": lambda address: self._stream(address, _HTTP),
                "login": lambda address: self._stream(address, _SSH),
                "call": lambda address: self._datagram(self.attacker, address, VICTIM_4, _CALLS),
                "asked": lambda address: self._datagram(self.victim, VICTIM_4, address, _DNS),
                "ping": self._ping,
            }
            plans = [
                self._repeat(one.name, works[work], address, every)
                for one in self._everybody
                for address in one.addresses
                for work, every in one.work
            ]
            await asyncio.gather(*plans)

    async def _repeat(
        self, name: str, work: Callable[[str], Awaitable[bool]], address: str, every: float
    ) -> None:
        """Begin a request every so often, whatever became of those before."""
        pending: set[asyncio.Task[None]] = set()
        await asyncio.sleep(random.random() * every)  # noqa: S311
        while not self._over.is_set():
            task = asyncio.create_task(self._once(name, work, address))
            pending.add(task)
            task.add_done_callback(pending.discard)
            await asyncio.sleep(every)
        for task in tuple(pending):
            task.cancel()

    async def _once(self, name: str, work: Callable[[str], Awaitable[bool]], address: str) -> None:
        began, is_served = time.monotonic(), False
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                is_served = await work(address)
        self._done[name].append((began, is_served))

    def _socket(self, netns: str, kind: socket.SocketKind, address: str, port: int = 0) -> socket.socket:
        with inside(netns):
            sock = socket.socket(socket.AF_INET, kind)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        return sock

    async def _stream(self, address: str, port: int) -> bool:
        with self._socket(self.attacker, socket.SOCK_STREAM, address) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (VICTIM_4, port))
            await loop.sock_sendall(sock, b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n")
            return bool(await loop.sock_recv(sock, 64))

    async def _datagram(self, netns: str, address: str, target: str, port: int) -> bool:
        with self._socket(netns, socket.SOCK_DGRAM, address) as sock:
            loop, question = asyncio.get_running_loop(), query("www.shop.example", 1)
            await loop.sock_connect(sock, (target, port))
            await loop.sock_sendall(sock, question)
            return (await loop.sock_recv(sock, 512))[:2] == question[:2]

    async def _ping(self, address: str) -> bool:
        with inside(self.attacker):
            sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        with sock:
            sock.setblocking(False)
            sock.bind((address, 0))
            loop, number = asyncio.get_running_loop(), random.randrange(1 << 16)  # noqa: S311
            await loop.sock_sendto(sock, _echo(number), (VICTIM_4, 0))
            while True:
                answer = await loop.sock_recv(sock, 2048)
                if answer[20] == 0 and answer[24:26] == number.to_bytes(2, "big"):
                    return True

    def forged(self, kind: str, names: tuple[str, ...], pps: int) -> AbstractContextManager[list[int]]:
        """Flood in these names for the duration of the block; afterwards the list has the number sent."""
        return self.forging([_FORGED[kind](names[number % len(names)]) for number in range(8_000)], pps)


class _Echo(asyncio.DatagramProtocol):
    """Sends a question back as its answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # before Python 3.12 it says otherwise

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data[:2] + b"\x81\x80" + data[4:], addr)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await reader.read(1024)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
    writer.close()


def _ip(source: str, protocol: int, payload: bytes) -> bytes:
    """Return a packet as Linux makes it; the kernel fills in its checksum (raw(7))."""
    number, ends = random.randrange(1, 1 << 16), socket.inet_aton(source) + socket.inet_aton(VICTIM_4)  # noqa: S311
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), number, 0x4000, 64, protocol, 0)
    return head + ends + payload


def _summed(source: str, protocol: int, payload: bytes, at: int) -> bytes:
    """Return a TCP or UDP packet with the checksum at an offset of its payload."""
    ends = socket.inet_aton(source) + socket.inet_aton(VICTIM_4)
    pseudo = ends + struct.pack(">BBH", 0, protocol, len(payload))
    return _ip(source, protocol, payload[:at] + _checksum(pseudo + payload) + payload[at + 2 :])


def _checksum(data: bytes) -> bytes:
    total = sum(array("H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("=H", ~total & 0xFFFF)


def _tcp(source: str, flags: int, window: int, options: bytes) -> bytes:
    sport, numbers = random.randrange(32768, 61000), random.randbytes(8)  # noqa: S311
    if not flags & 16:
        numbers = numbers[:4] + bytes(4)
    head = struct.pack(">HH", sport, _HTTP) + numbers
    head += struct.pack(">BBHHH", (20 + len(options)) << 2, flags, window, 0, 0)
    return _summed(source, 6, head + options, 16)


def _stamp() -> bytes:
    return b"\x08\x0a" + random.randbytes(4)  # noqa: S311


def _syn(source: str) -> bytes:
    return _tcp(source, 2, 64240, b"\x02\x04\x05\xb4\x04\x02" + _stamp() + b"\0\0\0\0\x01\x03\x03\x07")


def _ack(source: str) -> bytes:
    return _tcp(source, 16, 502, b"\x01\x01" + _stamp() + random.randbytes(4))  # noqa: S311


def _udp(source: str, sport: int, dport: int, payload: bytes) -> bytes:
    return _summed(source, 17, struct.pack(">4H", sport, dport, 8 + len(payload), 0) + payload, 6)


def _port() -> int:
    return random.randrange(32768, 61000)  # noqa: S311


def _echo(number: int) -> bytes:
    head = struct.pack(">BBHHH", 8, 0, 0, number, 1) + b"fwtop" * 11 + b"!"
    return head[:2] + _checksum(head) + head[4:]


_FORGED: dict[str, Callable[[str], bytes]] = {
    "SYN flood": _syn,
    "UDP flood": lambda source: _udp(source, _port(), _CALLS, query("www.shop.example", 1)),
    "DNS answers": lambda source: _udp(source, _DNS, _port(), query("www.shop.example", 1)),
    "ICMP": lambda source: _ip(source, 1, _echo(random.randrange(1 << 16))),  # noqa: S311
    "ACK flood": _ack,
}
PROTOCOLS = {"SYN flood": "tcp", "UDP flood": "udp", "DNS answers": "udp", "ICMP": "icmp", "ACK flood": "tcp"}
INTERFACE = VICTIM_INTERFACE
