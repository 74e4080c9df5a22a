"""Answers to `status`: from the last one if it is recent, else once the worker has made a new one.

A client waits half of its time at most. A busy worker then costs it fresh numbers, not the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from fwtop.guardian.serving.peer import Peer
from fwtop.model.protocol import Answer, Status

FRESH_SECONDS = 0.9
_MAX_WAIT_SECONDS = 5.0  # where an older answer is known


class Waiting(Struct, frozen=True):
    """A client that waits for its status until `until` (CLOCK_MONOTONIC seconds)."""

    peer: Peer
    request: Status
    until: float


class StatusCache:
    """The last status and the clients that wait for the next; of the event loop's thread.

    Its data is encoded (`Reports.status`).
    """

    def __init__(
        self,
        refresh: Callable[[bool, bool, Callable[[Answer], None]], None],
        version: Callable[[], int],
        reply: Callable[[Peer, Answer], None],
    ) -> None:
        """Take what has the worker make a status, the rules' version, and what answers a client.

        `refresh` is told whether finished rules and the allow-list are wanted, and whom to pass the answer.
        """
        self._refresh = refresh
        self._version = version
        self._reply = reply
        self._last = Answer(False, "the guardian is busy: ask again", 1)
        self._last_version = -1  # of the rules when the worker was asked for it
        self._at = 0.0
        self._waiting: list[Waiting] = []
        self._refreshing = False
        self._finished_wanted = self._allow_wanted = False

    def request(self, peer: Peer, request: Status, seconds: float | None) -> None:
        """Answer a client now or later; `seconds` is how long it waits for the answer."""
        half = (seconds or request.seconds) / 2
        wait = min(_MAX_WAIT_SECONDS, half) if self._last.ok and self._has(request) else half
        self._admit(Waiting(peer, request, time.monotonic() + wait))

    def expire(self, now: float) -> list[float]:
        """Answer those who waited long enough; returns how many seconds each of the others has left."""
        for waiting in [item for item in self._waiting if item.until <= now]:
            self._waiting.remove(waiting)
            self._answer(waiting)
        return [item.until - now for item in self._waiting]

    def _admit(self, waiting: Waiting) -> None:
        is_recent = time.monotonic() - self._at < FRESH_SECONDS and self._last_version == self._version()
        if self._last.ok and is_recent and self._has(waiting.request):
            self._answer(waiting)
            return
        self._waiting.append(waiting)
        self._finished_wanted |= waiting.request.finished
        self._allow_wanted |= waiting.request.allow
        if self._refreshing:
            return
        self._refreshing = True
        version = self._version()
        self._refresh(
            self._finished_wanted, self._allow_wanted, lambda answer: self._refreshed(answer, version)
        )

    def _refreshed(self, answer: Answer, version: int) -> None:
        self._last, self._last_version, self._at = answer, version, time.monotonic()
        self._refreshing = self._finished_wanted = self._allow_wanted = False
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            if self._has(item.request):
                self._answer(item)
            else:
                self._admit(item)

    def _has(self, request: Status) -> bool:
        """Return whether the last status has the parts that a request wants."""
        if not self._last.ok:
            return True  # asking again would fail again
        data = self._last.data
        return (not request.finished or "finished" in data) and (not request.allow or "allow" in data)

    def _answer(self, waiting: Waiting) -> None:
        self._reply(waiting.peer, self._for(waiting.request) if self._last.ok else self._last)

    def _for(self, request: Status) -> Answer:
        last = self._last.data
        data = {
            "rules": last["finished" if request.finished else "rules"],
            "warnings": last["warnings"],
            "age": f"{time.monotonic() - self._at:.3f}".encode(),
            "peers": last["peers"],
            "logins": last["logins"],
        }
        if request.allow:
            data["allow"] = last["allow"]
        return Answer(True, data=data)
