"""What the fleet asks of whatever carries its messages.

A transport carries and stores, it never decides: who reads verifies. Wanted documents lie on boards, under
names; the newest of each name is kept. That one changed is only a hint: it may be lost, so who follows reads
the whole board when it connects, and every now and then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from fwtop.model.errors import FwtopError

WANTED = "wanted"  # what machines are to do: roll-outs, orders, undo; and which machines there are
JOINING = "joining"  # requests of machines that want to join; under the token's id
ADMITTED = "admitted"  # what they are answered
SOURCES = "sources"  # lists of sources, in pieces, under their digest
MAX_SUMMARY = 4 << 10  # bytes
MAX_ANSWER = 64 << 10  # bytes; a server takes nothing longer from a machine
MAX_DOCUMENT = 512 << 10  # bytes
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,3}", re.ASCII)


class Entry(Struct, frozen=True):
    """A document on a board; `version` grows with each that is put there, whatever its name."""

    document: bytes
    version: int


class Transport(Protocol):
    """One party's connection. What fails raises FwtopError, and says whether it may be tried again."""

    lost: asyncio.Event  # set for good once the connection is gone: make another

    async def publish(self, name: str, summary: bytes) -> None:
        """Send a machine's summary to whoever follows; nobody keeps it."""

    async def follow(
        self, names: Iterable[str], take: Callable[[str, bytes], None], flooded: Callable[[str], None]
    ) -> None:
        """Have summaries that are published under these names given to `take`.

        Of who publishes far more than any machine does no more is heard: `flooded` is told, once.
        """

    async def read(self, board: str, name: str = "") -> Mapping[str, Entry]:
        """Return the newest document of every name on a board, or of one."""

    async def watch(self, board: str, take: Callable[[str, bytes], None]) -> None:
        """Have each document that is put on a board from now on given to `take`, perhaps not every one."""

    async def put(
        self, board: str, name: str, document: bytes, *, after: int | None = None, seconds: float = 0
    ) -> None:
        """Put a document on a board, kept for so many seconds (0: until it is replaced).

        With `after` only if the newest of this name has that version (0: there is none); else raises
        FwtopError with the reason "changed".
        """

    def ask(self, question: bytes, seconds: float) -> AsyncIterator[bytes]:
        """Ask all who answer; yield their answers as they come, for so long."""

    async def answer(self, reply: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer each question that is asked of all."""

    async def close(self) -> None:
        """End the connection."""


def check_name(name: str) -> str:
    """Return a document's name; raises FwtopError."""
    if not _NAME.fullmatch(name) or len(name) > 200:
        raise FwtopError("a document's name has up to four parts of letters, digits, '-' and '_'", 2)
    return name


def check_size(document: bytes, most: int) -> None:
    """Raise FwtopError for what is longer than it may be."""
    if len(document) > most:
        raise FwtopError(
            f"{len(document):,} bytes are more than the {most:,} that it may have; nothing was sent"
        )


def changed() -> FwtopError:
    """Return the error of a `put` that came too late."""
    line = "somebody else changed it meanwhile; nothing was changed; try again"
    return FwtopError(line, reason="changed", retryable=True)
