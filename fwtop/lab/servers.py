"""The victim's services: `python -I -m fwtop.lab.servers`, in the victim's namespace.

Minimal, but real: HTTP/1.1 with keep-alive on TCP 80, DNS on UDP 53, echo on TCP 22 for the operator's
session, and on TCP 443 a TLS endpoint that reads a ClientHello and refuses it with an alert. Exits at end of
input.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import sys
from typing import cast

from fwtop.lab.network import PORT_DNS, PORT_HTTP, PORT_SSH, PORT_TLS
from fwtop.lab.processes import answer, ignore_terminal_signals

_BODY = b"<!doctype html><title>shop</title><p>It works.</p>\n" * 12
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n%s\r\n" + _BODY
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: ?(\d{1,6})\r")
_IDLE_SECONDS = 20
_HANDSHAKE_FAILURE = b"\x15\x03\x03\x00\x02\x02\x28"  # RFC 8446, 6
_BACKLOG = 512


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        while True:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _IDLE_SECONDS)
            if announced := _LENGTH.search(head):
                await asyncio.wait_for(reader.readexactly(int(announced[1])), _IDLE_SECONDS)
            closing = b"connection: close" in head.lower()
            writer.write(_RESPONSE % (len(_BODY), b"Connection: close\r\n" if closing else b""))
            await writer.drain()
            if closing:
                break
    writer.close()


async def _tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        head = await asyncio.wait_for(reader.readexactly(5), _IDLE_SECONDS)
        await asyncio.wait_for(reader.readexactly(int.from_bytes(head[3:5], "big")), _IDLE_SECONDS)
        writer.write(_HANDSHAKE_FAILURE)
        await writer.drain()
    writer.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
    writer.close()


class _Dns(asyncio.DatagramProtocol):
    """Answers every query with the victim's A record (RFC 1035)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.find(b"\0", 12) + 5
        if len(data) < 17 or end < 17 or data[2] & 0x80:
            return
        head = data[:2] + struct.pack("!5H", 0x8580, 1, 1, 0, 0)
        answer = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + b"\xc6\x12\x00\x02"
        self._transport.sendto(head + data[12:end] + answer, addr)


def _datagram_socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    end = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    end.setblocking(False)
    end.bind((host, PORT_DNS))
    return end


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    for host in ("0.0.0.0", "::"):  # noqa: S104 - in an isolated namespace
        for handler, port in ((_http, PORT_HTTP), (_tls, PORT_TLS), (_echo, PORT_SSH)):
            await asyncio.start_server(handler, host, port, backlog=_BACKLOG)
        await loop.create_datagram_endpoint(_Dns, sock=_datagram_socket(host))
    answer({"ready": True})
    await ended.wait()


def main() -> int:
    """Serve until end of input."""
    ignore_terminal_signals()
    asyncio.run(_serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
