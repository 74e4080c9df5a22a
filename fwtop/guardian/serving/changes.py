"""What happened to rules and lists, numbered: the log that programs follow (docs/API.md, `changes`).

The worker compares after each request and each tick: what a request did is told however short it lasted. Who
follows from number to number misses nothing; a new guardian has a new log, with another name.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from fwtop.guardian.records.journal import Entry
from fwtop.guardian.rules.state import GuardianState
from fwtop.guardian.serving.connections import Connections
from fwtop.guardian.serving.foresight import Foresight
from fwtop.guardian.serving.peer import Peer
from fwtop.model.protocol import MAX_WAIT_SECONDS, Changes, SeenAttack, Summary
from fwtop.model.text import safe_text

_KEPT_BYTES = 4 << 20  # of events; the oldest go
_MOST_ATTACKS, _MOST_TEXT = 64, 120  # that consoles tell of within _SEEN_SECONDS; characters
_SEEN_SECONDS = 5.0
_SUMMARY_SECONDS = 15.0  # an older one says nothing any more
_MOST_BYTES = 8 << 20  # of events in an answer: it needs no more than one reading


class ChangeLog:
    """Compares in the worker's thread; read by the event loop's."""

    def __init__(self, state: GuardianState, wake: Callable[[], None]) -> None:
        """Take what is compared, for the worker's thread alone; `wake` is called once there is something."""
        self.name = os.urandom(6).hex()
        self.last = 0
        self._state = state
        self._wake = wake
        self._lock = threading.Lock()
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._rules: dict[str, Entry] = {}
        self._lists: dict[str, tuple[int, int]] = {}  # name → stamp, entries
        self._began = False
        self._seen_at, self._seen_count = 0.0, 0
        self._attacks: dict[str, dict[str, Any]] = {}  # that go on, by id
        self._summary: tuple[float, dict[str, Any]] = -math.inf, {}  # monotonic seconds, and what was told
        self.foresight = Foresight()

    def note(self) -> None:
        """Compare with the last time; the first time, what former guardians left is nothing new."""
        rules, lists = dict(self._state.active), self._stamps()
        before, self._rules = self._rules, rules
        lists_before, self._lists = self._lists, lists
        if not self._began:
            self._began = True
            return
        told = self.last
        for name in lists_before.keys() | lists.keys():
            if lists_before.get(name) != lists.get(name):
                self._list_event(name, lists_before.get(name), lists.get(name))
        for rule_id, entry in rules.items():
            old = before.get(rule_id)
            if old is not entry:
                self._rule_event("rule_changed" if old is not None else "rule_added", entry)
        for rule_id, entry in before.items():
            if rule_id not in rules:
                self._rule_event("rule_removed", self._state.journal.find(rule_id) or entry)
        if self.last != told:
            self._wake()

    def seen(self, pid: int, on: set[str], attacks: tuple[SeenAttack, ...]) -> None:
        """Log attacks that a console began or ceased to see; `on` holds the ids of those that it sees.

        Called by the event loop.

        A console may have been taken over: what it says is bounded, so that it drives nothing else out.
        """
        now = time.monotonic()
        if now - self._seen_at > _SEEN_SECONDS:
            self._seen_at, self._seen_count = now, 0
        room = max(0, _MOST_ATTACKS - self._seen_count)
        self._seen_count += len(attacks)
        for attack in attacks[:room]:
            about = _bounded(attack)
            key, is_on = f"{pid}-{attack.id}", attack.ended is None
            self._put("attack_began" if is_on else "attack_ended", {**about, "id": key})
            (on.add if is_on else on.discard)(key)
            self._attacks.pop(key, None)
            if is_on and len(self._attacks) < _MOST_ATTACKS:
                self._attacks[key] = {**about, "id": key}

    def unseen(self, on: set[str]) -> None:
        """Log that nobody sees these attacks any more: their console has gone."""
        for key in sorted(on):
            self._put("attack_ended", {"id": key, "ended": None})
            self._attacks.pop(key, None)

    def fares(self, summary: Summary) -> dict[str, Any]:
        """Note how the machine fares, and return what the answer tells; called by the event loop."""
        self._summary = time.monotonic(), _bounded(summary)
        return {"foresee": self.foresight.tell(summary.foreseen)}

    def since(self, number: int) -> dict[str, bytes]:
        """Return the events after a number as an answer's data, encoded; as many as an answer may have."""
        found, size = [], 0
        with self._lock:
            first = self._events[0][0] if self._events else self.last + 1
            for at, data in self._events:
                if at > number and size < _MOST_BYTES:
                    found.append(data)
                    size += len(data)
            last = self.last
        return {
            "log": json.dumps(self.name).encode(),
            "first": b"%d" % first,
            "last": b"%d" % last,
            "events": b"[" + b", ".join(found) + b"]",
            "attacks": json.dumps([*self._attacks.values()]).encode(),
            "summary": json.dumps(self._fares()).encode(),
        }

    def _fares(self) -> dict[str, Any] | None:
        at, about = self._summary
        age = time.monotonic() - at
        return {**about, "age": round(age, 1)} if age < _SUMMARY_SECONDS else None

    def _stamps(self) -> dict[str, tuple[int, int]]:
        known = self._state.known_lists
        if known is None:
            return {}
        return {name: (known.stamp_of(name), len(known.find(name).rows)) for name in known.names()}

    def _rule_event(self, event: str, entry: Entry) -> None:
        self._put(event, {"status": self._state.counters.status_of(entry)})

    def _list_event(self, name: str, old: tuple[int, int] | None, new: tuple[int, int] | None) -> None:
        event = "list_added" if old is None else "list_removed" if new is None else "list_changed"
        about: dict[str, Any] = {"name": name}
        about |= {"entries_before": old[1]} if old is not None else {}
        about |= {"entries": new[1], "stamp": new[0]} if new is not None else {}
        self._put(event, about)

    def _put(self, event: str, about: dict[str, Any]) -> None:
        with self._lock:
            self.last += 1
            data = json.dumps({"seq": self.last, "at": time.time(), "event": event, **about}).encode()
            self._events.append((self.last, data))
            self._bytes += len(data)
            while self._bytes > _KEPT_BYTES:
                self._bytes -= len(self._events.popleft()[1])


def _bounded(told: SeenAttack | Summary) -> dict[str, Any]:
    """Return what a console told, as far as it may be passed on."""
    return {
        name: safe_text(value, limit=_MOST_TEXT) if isinstance(value, str) else value
        for name, value in asdict(told).items()
        if not isinstance(value, dict) and (not isinstance(value, float) or math.isfinite(value))
    }


class _Waiting(Struct, frozen=True):
    peer: Peer
    since: int
    until: float  # CLOCK_MONOTONIC seconds


class Followers:
    """Those who wait for the next event; of the event loop's thread."""

    def __init__(self, log: ChangeLog, connections: Connections) -> None:
        self._log = log
        self._connections = connections
        self._waiting: list[_Waiting] = []

    def request(self, peer: Peer, request: Changes) -> None:
        """Answer now, or once something happened."""
        wait = min(max(0.0, request.wait_seconds), MAX_WAIT_SECONDS)
        if not wait or self._log.last != request.since:  # also a number of another log
            self._answer(peer, request.since)
            return
        self._connections.suspend(peer)
        self._waiting.append(_Waiting(peer, request.since, time.monotonic() + wait))

    def serve(self, now: float) -> list[float]:
        """Answer those for whom there is something, or whose time is over; returns what others have left."""
        last, waiting = self._log.last, self._waiting
        self._waiting = [
            item
            for item in waiting
            if item.since == last and item.until > now and item.peer in self._connections
        ]
        for item in waiting:
            if item.peer in self._connections and (item.since != last or item.until <= now):
                self._answer(item.peer, item.since)
        return [item.until - now for item in self._waiting]

    def _answer(self, peer: Peer, since: int) -> None:
        self._connections.reply_encoded(peer, self._log.since(since))
