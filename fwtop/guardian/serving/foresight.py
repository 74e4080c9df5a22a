"""What a rule would stop of the traffic that is seen: who watches it is asked, and tells.

The guardian parses no packets: for the preview of a fleet's rule the watcher replays it on its window.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from fwtop.model.protocol import Foreseen
from fwtop.model.wire import plain

_LASTS_SECONDS = 5.0  # of what was told, and of a question
_MOST = 8  # rules at a time


class Foresight:
    """Questions and answers by key; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[float, dict[str, Any]]] = {}
        self._told: dict[str, tuple[float, dict[str, Any]]] = {}

    def of(self, key: str, rule: dict[str, Any]) -> dict[str, Any] | None:
        """Return what was told of a rule lately; else None, and it is asked for."""
        now = time.monotonic()
        with self._lock:
            at, told = self._told.get(key, (-_LASTS_SECONDS, None))
            if now - at < _LASTS_SECONDS:
                return told
            if len(self._asked) < _MOST or key in self._asked:
                self._asked[key] = now, rule
        return None

    def tell(self, told: dict[str, Foreseen]) -> dict[str, dict[str, Any]]:
        """Take what the watcher tells, and return what it is asked now, by key."""
        now = time.monotonic()
        with self._lock:
            self._told = {key: kept for key, kept in self._told.items() if now - kept[0] < _LASTS_SECONDS}
            for key in told.keys() & self._asked.keys():
                self._told[key] = now, plain(told[key])
                del self._asked[key]
            self._asked = {key: kept for key, kept in self._asked.items() if now - kept[0] < _LASTS_SECONDS}
            return {key: rule for key, (_, rule) in self._asked.items()}
