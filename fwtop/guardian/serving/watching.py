"""Requests of those who watch: observers, functions that drop packets, a survey, all rules; and status.

Of the event loop's thread. What takes time is done by a child (observers.py) or the worker; answers come from
the last reading.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.serving.connections import Connections
from fwtop.guardian.serving.observers import Loading, Observers
from fwtop.guardian.serving.peer import Client, Peer
from fwtop.guardian.serving.reports import Reports
from fwtop.guardian.serving.worker import Worker
from fwtop.guardian.survey import Functions, LastSurvey
from fwtop.kernel import children
from fwtop.model.addresses.address import Prefix
from fwtop.model.messages import MAX_MESSAGE, Answer
from fwtop.model.protocol import MAX_TRACKED, Rescan, Rules, Status, Survey, Symbols, Tracked, Watch
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP
from fwtop.netfilter import ctnetlink
from fwtop.netfilter.ctnetlink import Entry
from fwtop.xdp.messages import Loaded

_MODULE = "fwtop.netfilter.listing.reader"
_RULES_SECONDS = 2.0
_PAUSE = 10.0  # times what a reading took
_STUCK_SECONDS = 60.0  # a child without an answer is ended
_RESTART_SECONDS = 5.0
FRESH_SECONDS = 0.9
_MAX_WAIT_SECONDS = 5.0  # where an older answer is known


class Watching:
    """Serves the requests of those who watch. `observers` are what is attached for them."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        connections: Connections,
        worker: Worker,
        compiled: CompiledRules,
        reports: Reports,
    ) -> None:
        """Take what answers go to; `compiled` and `reports` are for the worker's thread alone."""
        self.observers = Observers(self._await_loader, connections.reply)
        self._selector = selector
        self._connections = connections
        self._worker = worker
        self._compiled = compiled
        self._reports = reports
        self._functions = Functions()  # for the worker
        self._survey = LastSurvey()
        self._rulesets = Rulesets(selector)

    def serve(
        self, peer: Peer, client: Client, request: Watch | Rescan | Survey | Symbols | Rules | Tracked
    ) -> None:
        """Answer a request, or have the worker or a loader do so."""
        match request:
            case Watch():
                self._start(peer, client, request)
            case Rescan():
                self.observers.rescan()
                self._connections.reply(peer, Answer(True))
            case Survey():
                self._connections.reply(peer, Answer(True, data=self._survey.data))
                self._renew_survey()
            case Symbols():
                self._name_locations(peer, client)
            case Tracked():
                self._connections.reply(peer, Answer(True, data={"assured": _assured(request)}))
            case Rules():
                self._connections.reply_encoded(peer, {"ruleset": self._rulesets.request()})

    def finish(self) -> None:
        """End all children."""
        self._rulesets.close()
        self.observers.finish()

    def _loaded(self, loading: Loading) -> None:
        self._selector.unregister(loading.sock)
        taken = self.observers.take(loading)
        if taken is None:
            return
        answer, forward, maps = taken
        peer = loading.wanted.peer
        if not answer.ok:
            self._connections.reply(peer, answer)
            return

        def done(found: Answer) -> None:
            self.observers.maps = found.data.pop("maps", self.observers.maps)
            whole = Answer(True, data={**answer.data, **found.data}) if found.ok else found
            self._connections.reply(peer, whole, forward)

        self._worker.ask(Watch(), lambda: self._with_maps(maps), done)

    def _start(self, peer: Peer, client: Client, request: Watch) -> None:
        if client.slot is not None:
            self._connections.reply(peer, Answer(False, "this client watches already", 1))
            return

        def work() -> dict[str, Any]:
            self._compiled.interfaces.update(request.interfaces)
            return dict(self._compiled.share_maps())

        def done(answer: Answer) -> None:
            if peer not in self._connections:
                return
            self.observers.maps = answer.data
            self.observers.watch(peer, client, request)

        self._connections.suspend(peer)
        self._worker.ask(request, work, done)

    def _await_loader(self, loading: Loading) -> None:
        self._selector.register(loading.sock, selectors.EVENT_READ, lambda: self._loaded(loading))

    def _with_maps(self, maps: dict[str, int]) -> dict[str, Any]:
        self._compiled.take_maps(Loaded(maps=maps))
        return {**self._reports.host_addresses(), "maps": dict(self._compiled.descriptors)}

    def _name_locations(self, peer: Peer, client: Client) -> None:
        """Tell a client which functions dropped packets, without their addresses."""
        try:
            addresses = self.observers.locations(client)
        except OSError as error:
            self._connections.reply(peer, Answer(False, safe_text(error), 1))
            return

        self._connections.suspend(peer)
        done = partial(self._connections.reply, peer)
        self._worker.ask(Symbols(), lambda: {"names": self._functions.names(addresses)}, done)

    def _renew_survey(self) -> None:
        """Have the worker make a new survey if the last one is old; nobody waits for it."""
        if not self._survey.due():
            return
        interfaces = self.observers.interfaces()

        def done(answer: Answer) -> None:
            self._survey.data = answer.data if answer.ok else self._survey.data

        self._worker.ask(Survey(), lambda: self._survey.read(interfaces), done)


def _assured(request: Tracked) -> list[bool]:
    """Look connections up: some microseconds for each, which is not worth a way through the worker."""
    opened = []
    for source, sport, destination, dport in request.flows[:MAX_TRACKED]:
        one, other = Prefix.parse(source), Prefix.parse(destination)
        opened.append(Entry(one.family, TCP, one.packed, other.packed, sport, dport))
    try:
        return ctnetlink.assured(opened)
    except OSError:  # nothing is tracked here
        return []


class Rulesets:
    """Every rule and set on the machine, read by a child; the event loop passes its last answer on.

    The child is started by the first request and ends when nobody asks. A reading that takes long is followed
    by a pause, so that it costs at most a few percent of a processor. Nothing here waits.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Take the loop's selector; what is registered there is this object."""
        self._selector = selector
        self._last = b"null"
        self._sock: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ended: list[subprocess.Popen[bytes]] = []
        self._asked: float | None = None  # when; None: it has answered
        self._due = 0.0

    def request(self) -> bytes:
        """Return the last reading as JSON (null: none yet), and have the next one begun if it is due."""
        now = time.monotonic()
        self._reap()
        if self._asked is not None and now - self._asked > _STUCK_SECONDS:
            self.close()
        if self._asked is None and now >= self._due:
            self._ask(now)
        return self._last

    def ready(self) -> None:
        """Take the child's answer, or its end."""
        if self._sock is None:
            return
        try:
            message = self._sock.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.close()
            return
        now = time.monotonic()
        took = now - self._asked if self._asked is not None else 0.0
        self._last, self._asked = message, None
        self._due = now + max(_RULES_SECONDS - took, _PAUSE * took)

    def close(self) -> None:
        """End the child."""
        if self._sock is not None:
            self._selector.unregister(self._sock)
            self._sock.close()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            self._ended.append(self._child)
        self._sock = self._child = self._asked = None
        self._due = time.monotonic() + _RESTART_SECONDS
        self._reap()

    def _ask(self, now: float) -> None:
        self._due = now + _RESTART_SECONDS
        try:
            if self._sock is None:
                self._child, self._sock = children.start_with_socket(_MODULE)
                self._sock.setblocking(False)
                self._selector.register(self._sock, selectors.EVENT_READ, self.ready)
            self._sock.send(b"r")
            self._asked = now
        except OSError:  # no memory or no process left: tried again later
            self.close()

    def _reap(self) -> None:
        self._ended = [child for child in self._ended if child.poll() is None]


class Waiting(Struct, frozen=True):
    """A client that waits for its status until `until` (CLOCK_MONOTONIC seconds)."""

    peer: Peer
    request: Status
    until: float


class StatusCache:
    """The last status and the clients that wait for the next; of the event loop's thread.

    Its data is encoded (`Reports.status`).
    """

    def __init__(self, worker: Worker, reports: Reports, reply: Callable[[Peer, Answer], None]) -> None:
        self._worker = worker
        self._reports = reports  # for the worker's thread alone
        self._reply = reply
        self._last = Answer(False, "the guardian is busy: ask again", 1, reason="busy", retryable=True)
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
        is_recent = time.monotonic() - self._at < FRESH_SECONDS and self._last_version == self._worker.version
        if self._last.ok and is_recent and self._has(waiting.request):
            self._answer(waiting)
            return
        self._waiting.append(waiting)
        self._finished_wanted |= waiting.request.finished
        self._allow_wanted |= waiting.request.allow
        if not self._refreshing:
            self._refreshing = True
            make = partial(self._reports.status, finished=self._finished_wanted, allow=self._allow_wanted)
            self._worker.ask(Status(), make, partial(self._refreshed, version=self._worker.version))

    def _refreshed(self, answer: Answer, version: int) -> None:
        self._last, self._last_version, self._at = answer, version, time.monotonic()
        self._refreshing = self._finished_wanted = self._allow_wanted = False
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            (self._answer if self._has(item.request) else self._admit)(item)

    def _has(self, request: Status) -> bool:
        """Return whether the last status has what a request wants, or failed: it would fail again."""
        data = self._last.data
        return not self._last.ok or (
            (not request.finished or "finished" in data) and (not request.allow or "allow" in data)
        )

    def _answer(self, waiting: Waiting) -> None:
        if not self._last.ok:
            self._reply(waiting.peer, self._last)
            return
        last = self._last.data
        data = {
            "rules": last["finished" if waiting.request.finished else "rules"],
            "warnings": last["warnings"],
            "age": f"{time.monotonic() - self._at:.3f}".encode(),
            "peers": last["peers"],
            "logins": last["logins"],
            "login_ports": last["login_ports"],
        }
        allow = {"allow": last["allow"]} if waiting.request.allow else {}
        self._reply(waiting.peer, Answer(True, data=data | allow))
