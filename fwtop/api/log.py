"""What was told of this machine, numbered and bounded: each reader goes on where it was, at its own pace."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from typing import Any, NamedTuple

from fwtop.model.ruleset import RuleEvent
from fwtop.netfilter.listing.events import event_json

KEPT_BYTES = 16 << 20  # of documents; the oldest go


class Kept(NamedTuple):
    """A document, encoded, and what filters look at."""

    seq: int
    event: str
    by: str
    line: bytes


class EventLog:
    """The last documents; any thread adds and reads."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.name = os.urandom(4).hex()  # another one after each start: cursors of others are not ours
        self.last = 0
        self._most = kept_bytes
        self._kept: deque[Kept] = deque()
        self._bytes = 0
        self._more = threading.Condition()

    def put(self, event: RuleEvent) -> None:
        """Number an event and keep it."""
        with self._more:
            self.last += 1
            line = self.line(event, self.last)
            self._kept.append(Kept(self.last, event.event, event.by, line))
            self._bytes += len(line)
            while self._bytes > self._most and len(self._kept) > 1:
                self._bytes -= len(self._kept.popleft().line)
            self._more.notify_all()

    def line(self, event: RuleEvent, seq: int) -> bytes:
        """Encode a document that a reader gets when it has read up to a number."""
        document: dict[str, Any] = {"seq": seq, "cursor": f"{self.name}-{seq}", **event_json(event)}
        return json.dumps(document).encode() + b"\n"

    def position(self, cursor: str) -> int | None:
        """Return the number that a cursor names, None if the log does not reach back to it."""
        name, _, number = cursor.rpartition("-")
        if name != self.name or not (number.isascii() and number.isdigit()) or int(number) > self.last:
            return None
        return int(number) if int(number) + 1 >= self._first() else None

    def after(self, seq: int, seconds: float, most_bytes: int = 1 << 20) -> tuple[list[Kept], int]:
        """Return documents after a number, waiting for some, and how many before them are gone."""
        with self._more:
            self._more.wait_for(lambda: self.last > seq, seconds)
            missed = max(0, self._first() - seq - 1)
            found, size = [], 0
            for kept in self._from(seq + 1):
                if size >= most_bytes:
                    break
                found.append(kept)
                size += len(kept.line)
            return found, missed

    def _first(self) -> int:
        return self._kept[0].seq if self._kept else self.last + 1

    def _from(self, seq: int) -> list[Kept]:
        """Return what is kept from a number on; readers are mostly near the end."""
        newer: list[Kept] = []
        for kept in reversed(self._kept):
            if kept.seq < seq:
                break
            newer.append(kept)
        return newer[::-1]
