"""A broker in this process, that keeps the contract of a transport (test_fleet_transport.py)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Self

from fwtop.fleet.transport import MAX_DOCUMENT, MAX_SUMMARY, Entry, changed, check_name, check_size


class Memory:
    """A broker in this process; `connect` as often as there are parties."""

    def __init__(self) -> None:
        self.boards: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
        self.followers: defaultdict[str, list[Callable[[str, bytes], None]]] = defaultdict(list)
        self.flooded: Callable[[str], None] = print
        self.watchers: defaultdict[str, list[Callable[[str, bytes], None]]] = defaultdict(list)
        self.answering: list[Callable[[bytes], Awaitable[bytes]]] = []
        self.version = 0

    async def connect(self) -> MemoryTransport:
        """Return a party's connection."""
        return MemoryTransport(self)


class MemoryTransport:
    """A connection to a broker in this process."""

    def __init__(self, broker: Memory) -> None:
        self.lost = asyncio.Event()
        self._broker = broker

    async def publish(self, name: str, summary: bytes) -> None:
        """See Transport."""
        check_size(summary, MAX_SUMMARY)
        for take in self._broker.followers[check_name(name)]:
            take(name, summary)

    async def follow(
        self, names: Iterable[str], take: Callable[[str, bytes], None], flooded: Callable[[str], None]
    ) -> None:
        """See Transport; the broker's `flooded` has a machine taken for one that floods."""
        self._broker.flooded = flooded
        for name in names:
            self._broker.followers[name].append(take)

    async def read(self, board: str, name: str = "") -> Mapping[str, Entry]:
        """See Transport."""
        found = self._broker.boards[board]
        return {key: entry for key, entry in found.items() if name in ("", key)}

    async def watch(self, board: str, take: Callable[[str, bytes], None]) -> None:
        """See Transport."""
        self._broker.watchers[board].append(take)

    async def put(
        self, board: str, name: str, document: bytes, *, after: int | None = None, seconds: float = 0
    ) -> None:
        """See Transport."""
        check_size(document, MAX_DOCUMENT)
        entries = self._broker.boards[board]
        newest = entries.get(check_name(name))
        if after is not None and after != (newest.version if newest else 0):
            raise changed()
        self._broker.version += 1
        entries[name] = Entry(document, self._broker.version)
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._expire, board, name, self._broker.version)
        for take in self._broker.watchers[board]:
            take(name, document)

    def _expire(self, board: str, name: str, version: int) -> None:
        entry = self._broker.boards[board].get(name)
        if entry is not None and entry.version == version:
            del self._broker.boards[board][name]

    async def ask(self, question: bytes, seconds: float) -> AsyncIterator[bytes]:
        """See Transport."""
        asked = [asyncio.ensure_future(reply(question)) for reply in self._broker.answering]
        try:
            for answered in asyncio.as_completed(asked, timeout=seconds):
                yield await answered
        except TimeoutError:
            return
        finally:
            for one in asked:
                one.cancel()

    async def answer(self, reply: Callable[[bytes], Awaitable[bytes]]) -> None:
        """See Transport."""
        self._broker.answering.append(reply)

    async def close(self) -> None:
        """See Transport."""
        self.lost.set()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the connection."""
        await self.close()
