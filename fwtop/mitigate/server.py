"""The guardian's event loop: clients, clocks and observers, in one thread that never waits for a client."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import syslog
import time
from dataclasses import dataclass
from typing import Any

from fwtop.mitigate.observers import Loading, Observers
from fwtop.mitigate.peer import Peer, PeerGone
from fwtop.mitigate.service import Service
from fwtop.model.address import Prefix
from fwtop.model.bulk import read_sources
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import (
    Answer,
    Apply,
    Hello,
    Keep,
    Plan,
    Request,
    Status,
    Undo,
    Watch,
    parse_request,
)
from fwtop.model.text import safe_text

ROLES = frozenset({"console", "cli"})
MAX_CLIENTS = 16
_FIRST_CLIENT_SECONDS = 10.0  # whoever started us connects at once
_LINGER_SECONDS = 0.5  # the next command of a script finds us still there
_MAX_OPERATORS = 32


Sources = tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a guardian tells about itself."""

    pid: int
    build: str
    netns: int
    variant: str


class Server:
    """Serves clients until there are neither clients nor active rules."""

    def __init__(self, service: Service, identity: Identity, operators: dict[Prefix, float]) -> None:
        self._service = service
        self._identity = identity
        self._operators = operators  # of all sessions that had a client here → when last seen
        self._selector = selectors.DefaultSelector()
        self._peers: set[Peer] = set()
        self._observers = Observers()
        self._stop = False
        self._idle_at = time.monotonic() + _FIRST_CLIENT_SECONDS

    def run(self, listener: socket.socket) -> None:
        """Serve until done, retired by a newer build, or told to end by SIGTERM or SIGINT."""
        wake, _waker = self._catch_signals()
        self._observers.detach_stale()
        self._selector.register(listener, selectors.EVENT_READ, listener)
        self._selector.register(wake, selectors.EVENT_READ, wake)
        while not self._stop:
            for key, _ in self._selector.select(self._pause()):
                self._ready(key.data, listener, wake)
            self._observers.reap()
        for peer in list(self._peers):
            self._drop(peer)
        listener.close()
        self._observers.finish()

    def _catch_signals(self) -> tuple[socket.socket, socket.socket]:
        wake, waker = socket.socketpair()
        wake.setblocking(False)
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "_stop", True))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the loop: a detaching child ended
        return wake, waker

    def _pause(self) -> float | None:
        """Run the clocks and return how long nothing can happen by itself."""
        try:
            pause = self._service.tick()
        except FwtopError as error:
            # The kernel's own timeouts end the rule all the same; its remains are tried again.
            syslog.syslog(syslog.LOG_ERR, safe_text(error))
            pause = 1.0
        late = self._observers.next_timeout()
        if late is not None:
            pause = late if pause is None else min(pause, late)
        now = time.monotonic()
        if self._peers or self._service.active:
            self._idle_at = now + _LINGER_SECONDS
            return pause
        if now >= self._idle_at:
            self._stop = True
            return 0.0
        return min(self._idle_at - now, pause if pause is not None else self._idle_at - now)

    def _ready(self, source: object, listener: socket.socket, wake: socket.socket) -> None:
        if source is listener:
            self._welcome(listener)
        elif source is wake:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
        elif isinstance(source, Loading):
            self._loaded(source)
        elif source in self._peers:
            self._read(source)

    def _welcome(self, listener: socket.socket) -> None:
        peer = Peer.accept(listener)
        if peer is None:
            return
        if len(self._peers) >= MAX_CLIENTS:
            peer.close()
            return
        self._peers.add(peer)
        self._selector.register(peer.sock, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> None:
        """Serve one request; the loop comes back for the next, so that no client starves the others."""
        attached: int | None = None
        try:
            message, attached = peer.receive()
            if not message:
                return
            answer = self._answer(peer, message, attached)
            if answer is not None:
                peer.send(answer)
        except PeerGone:
            self._drop(peer)
        finally:
            if attached is not None:
                os.close(attached)

    def _answer(self, peer: Peer, message: bytes, attached: int | None) -> Answer | None:
        try:
            request = parse_request(message)
            sources = _sources(request, attached)
        except ValueError as error:
            return Answer(False, safe_text(f"not understood: {error}"), 2)
        try:
            return self._serve(peer, request, sources)
        except PeerGone:
            raise
        except FwtopError as error:
            return Answer(False, safe_text(error, limit=1000), error.code)
        except Exception as error:
            # Whatever a request broke, the other clients' rules still need their guardian.
            line = safe_text(f"{type(request).__name__.lower()} failed: {type(error).__name__}: {error}")
            syslog.syslog(syslog.LOG_ERR, line)
            return Answer(False, line, 1)

    def _serve(self, peer: Peer, request: Request, sources: Sources) -> Answer | None:
        if peer.hello is None:
            if not isinstance(request, Hello):
                raise PeerGone
            return self._greet(peer, request)
        match request:
            case Hello():
                return Answer(False, "hello was said already", 2)
            case Watch():
                return self._start_watching(peer, request)
            case Status():
                data = self._status(peer, request)
            case Plan():
                data = self._service.plan(request.rule, sources)
            case _ if peer.hello.readonly:
                return Answer(False, "read-only: nothing was changed", 1)
            case _:
                data = self._change(peer, request, sources)
        return Answer(True, data=data)

    def _change(self, peer: Peer, request: Apply | Keep | Undo, sources: Sources) -> dict[str, Any]:
        if isinstance(request, Apply):
            owner = peer if peer.hello is not None and peer.hello.role == "console" else None
            return self._service.apply(
                request.rule, sources, request.confirm_seconds, force=request.force, owner=owner
            )
        if isinstance(request, Keep):
            return self._service.keep(request.id, request.ttl_seconds)
        return self._service.undo(request.ids, everything=request.all)

    def _greet(self, peer: Peer, hello: Hello) -> Answer:
        if hello.role not in ROLES:
            return Answer(False, "no such role", 2)
        if hello.build != self._identity.build:
            self._stop = True  # rules stay: the journal tells the successor
            return Answer(False, "another build took over", 1, {"retired": self._identity.pid})
        peer.hello = hello
        if peer.operator is not None and len(self._operators) < _MAX_OPERATORS:
            self._operators[peer.operator] = time.monotonic()
        return Answer(True, data={"guardian": self._about(hello.readonly)})

    def _status(self, peer: Peer, request: Status) -> dict[str, Any]:
        readonly = peer.hello is not None and peer.hello.readonly
        return {**self._service.status(finished=request.finished), "guardian": self._about(readonly)}

    def _about(self, readonly: bool) -> dict[str, Any]:
        me = self._identity
        return {
            "pid": me.pid,
            "build": me.build,
            "netns": me.netns,
            "variant": me.variant,
            "readonly": readonly,
        }

    def _start_watching(self, peer: Peer, request: Watch) -> Answer | None:
        if peer.slot is not None:
            return Answer(False, "this client watches already", 1)
        loading = self._observers.start(peer, request)
        peer.waiting = True
        self._selector.unregister(peer.sock)  # its next request waits until this one is answered
        self._selector.register(loading.sock, selectors.EVENT_READ, loading)
        return None

    def _loaded(self, loading: Loading) -> None:
        self._selector.unregister(loading.sock)
        answer, forward = self._observers.take(loading)
        peer = loading.peer
        peer.waiting = False
        if answer.ok:
            answer = Answer(True, data={**answer.data, **self._service.surroundings()})
        try:
            peer.send(answer, forward)
            self._selector.register(peer.sock, selectors.EVENT_READ, peer)
        except PeerGone:
            self._drop(peer)
        finally:
            for descriptor in forward:
                os.close(descriptor)

    def _drop(self, peer: Peer) -> None:
        """Forget a client: its observers go, and its unconfirmed rules."""
        self._peers.discard(peer)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.sock)
        peer.close()
        if peer.slot is not None:
            self._observers.detach(peer.slot)
        try:
            self._service.owner_gone(peer)
        except FwtopError as error:
            syslog.syslog(syslog.LOG_ERR, safe_text(error))


def _sources(request: Request, attached: int | None) -> Sources:
    """Return the list that came beside a request; raises ValueError unless both agree that there is one."""
    announced = isinstance(request, Plan | Apply) and request.attached
    if announced != (attached is not None):
        raise ValueError("a list is announced or attached, but not both")
    return read_sources(attached) if attached is not None else ()
