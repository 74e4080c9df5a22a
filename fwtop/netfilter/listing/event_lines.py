"""Write events as lines to a reader that may be slow, without ever delaying their source."""

from __future__ import annotations

import json
import os
import queue
import threading
from typing import Any

from fwtop.model.ruleset import RuleEvent
from fwtop.render.numbers import utc
from fwtop.render.observation import rfc3339

WAITING = 10_000  # events for a slow reader; further ones are counted
_END_SECONDS = 2.0


class EventLines:
    """Writes events to a descriptor from a thread of its own."""

    def __init__(self, descriptor: int, *, as_json: bool, waiting: int = WAITING) -> None:
        self._descriptor = descriptor
        self._as_json = as_json
        self._waiting: queue.Queue[RuleEvent | None] = queue.Queue(waiting)
        self._lost = 0
        self._lock = threading.Lock()
        self.ended = threading.Event()  # the reader has gone
        self._thread = threading.Thread(target=self._write_all, name="event-lines", daemon=True)
        self._thread.start()

    def put(self, event: RuleEvent) -> None:
        """Have an event written; returns at once."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            with self._lock:
                self._lost += 1

    def close(self) -> None:
        """Write what waits, within a limit, and end."""
        try:
            self._waiting.put(None, timeout=_END_SECONDS)
        except queue.Full:
            return
        self._thread.join(_END_SECONDS)

    def _write_all(self) -> None:
        try:
            while (event := self._waiting.get()) is not None:
                self._write(event)
                with self._lock:
                    lost, self._lost = self._lost, 0
                if lost:
                    self._write(RuleEvent(event.at, "events_lost", "", about={"count": lost}))
        except OSError:
            self.ended.set()

    def _write(self, event: RuleEvent) -> None:
        line = json.dumps(event_json(event)) if self._as_json else event_text(event)
        left = memoryview(line.encode() + b"\n")
        while left:
            left = left[os.write(self._descriptor, left) :]


def event_json(event: RuleEvent) -> dict[str, Any]:
    """Return an event for JSON."""
    known = {"how": event.how, "by": event.by, "source": event.source}
    return {"at": rfc3339(event.at), "event": event.event, **known, **event.about}


def event_text(event: RuleEvent) -> str:
    """Write an event as a line for people."""
    about = dict(event.about)
    process = about.pop("process", None)
    words = [utc(event.at), event.event.replace("_", " "), event.source]
    words += [
        str(value) if name in _BARE else f"{name} {value}" for name, value in about.items() if value != ""
    ]
    if process:
        words.append(f"by {process['name']} (process {process['pid']})")
    whose = "fwtop's" if event.by == "fwtop" else ""
    return " ".join(word for word in (*words, whose, f"[{event.how}]" if event.how else "") if word)


_BARE = frozenset({"family", "table", "chain", "place", "rule", "name", "text"})
