"""Stub resolvers as clients have them: they ask again after a second, and by TCP if told to (TC)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Sequence

from msgspec import Struct, field

from fwtop.kernel.namespaces import inside
from fwtop.model.traffic.dns import wire_name

_TRIES, _TRY_SECONDS = 3, 1.0
_PAUSE_SECONDS = 0.2  # of a client between two questions
_TRUNCATED = 0x02


class ClientAnswers(Struct):
    """What became of the clients' questions."""

    asked: int = 0
    answered: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def success(self) -> float:
        """The share that was answered."""
        return self.answered / self.asked if self.asked else 0.0


def ask_names(
    netns: str, server: str, clients: Sequence[str], names: Sequence[str], seconds: float
) -> ClientAnswers:
    """Let clients of a namespace ask a server for names, each from an address of its own."""
    answers = ClientAnswers()

    async def run() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(_client(_Stub(netns, server, one), names, end, answers) for one in clients))

    asyncio.run(run())
    return answers


class _Stub(Struct, frozen=True):
    """A client: where it lives, and which server it asks."""

    netns: str
    server: str
    address: str

    def socket(self, kind: socket.SocketKind) -> socket.socket:
        with inside(self.netns):
            sock = socket.socket(socket.AF_INET, kind)
        sock.setblocking(False)
        sock.bind((self.address, 0))
        return sock


async def _client(stub: _Stub, names: Sequence[str], end: float, answers: ClientAnswers) -> None:
    await asyncio.sleep(random.random() * _PAUSE_SECONDS)  # noqa: S311
    while time.monotonic() < end:
        started = time.monotonic()
        answers.asked += 1
        if await _resolve(stub, random.choice(names)):  # noqa: S311
            answers.answered += 1
            answers.seconds.append(time.monotonic() - started)
        await asyncio.sleep(_PAUSE_SECONDS)


async def _resolve(stub: _Stub, name: str) -> bool:
    head = struct.pack(">6H", random.randrange(1 << 16), 0x0100, 1, 0, 0, 0)  # noqa: S311
    question = head + wire_name([label.encode() for label in name.split(".")]) + b"\0\1\0\1"
    with stub.socket(socket.SOCK_DGRAM) as sock:
        sock.connect((stub.server, 53))
        for _ in range(_TRIES):
            with contextlib.suppress(TimeoutError, OSError):
                answer = await _exchange(sock, question)
                if answer[2] & _TRUNCATED:
                    return await _by_tcp(stub, question)
                return _is_answer(answer)
    return False


async def _exchange(sock: socket.socket, question: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_TRY_SECONDS):
        await loop.sock_sendall(sock, question)
        while True:
            answer = await loop.sock_recv(sock, 4096)
            if answer[:2] == question[:2] and len(answer) >= 12:
                return answer


async def _by_tcp(stub: _Stub, question: bytes) -> bool:
    loop = asyncio.get_running_loop()
    with stub.socket(socket.SOCK_STREAM) as sock, contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_TRIES * _TRY_SECONDS):
            await loop.sock_connect(sock, (stub.server, 53))
            await loop.sock_sendall(sock, struct.pack(">H", len(question)) + question)
            answer = b""
            while len(answer) < 14 or len(answer) < 2 + int.from_bytes(answer[:2], "big"):
                more = await loop.sock_recv(sock, 4096)
                if not more:
                    return False
                answer += more
            return _is_answer(answer[2:])
    return False


def _is_answer(message: bytes) -> bool:
    """Whether it is without error, and has records."""
    return message[3] & 15 == 0 and int.from_bytes(message[6:8], "big") > 0
