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

from fwtop.mitigate.jobs import Job, Jobs
from fwtop.mitigate.observers import Loading, Observers
from fwtop.mitigate.peer import Peer, PeerGone
from fwtop.mitigate.requests import carry_out, check_attached, guarded
from fwtop.mitigate.service import Service
from fwtop.mitigate.xdp import FastPath
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import (
    Answer,
    Apply,
    Hello,
    Keep,
    Request,
    Status,
    Undo,
    Watch,
    Why,
    parse_request,
)
from fwtop.model.text import safe_text

ROLES = frozenset({"console", "cli"})
MAX_CLIENTS = 16
_FIRST_CLIENT_SECONDS = 10.0  # whoever started us connects at once
_LINGER_SECONDS = 0.5  # the next command of a script finds us still there
_MAX_OPERATORS = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """What a guardian tells about itself."""

    pid: int
    build: str
    netns: int
    variant: str


class Server:
    """Serves clients until there are neither clients nor active rules."""

    def __init__(
        self, service: Service, identity: Identity, operators: dict[Prefix, float], fast: FastPath
    ) -> None:
        self._service = service
        self._identity = identity
        self._operators = operators  # of all sessions that had a client here → when last seen
        self._selector = selectors.DefaultSelector()
        self._peers: set[Peer] = set()
        self._fast = fast
        self._observers = Observers(fast)
        self._jobs = Jobs()
        self._gone: list[Peer] = []  # whose unconfirmed rules fall as soon as no change is under way
        self._stop = False
        self._idle_at = time.monotonic() + _FIRST_CLIENT_SECONDS

    def run(self, listener: socket.socket) -> None:
        """Serve until done, retired by a newer build, or told to end by SIGTERM or SIGINT."""
        wake, _waker = self._catch_signals()
        self._observers.detach_stale()
        self._selector.register(listener, selectors.EVENT_READ, listener)
        self._selector.register(wake, selectors.EVENT_READ, wake)
        self._selector.register(self._jobs.wake, selectors.EVENT_READ, self._jobs)
        while not self._stop:
            for key, _ in self._selector.select(self._pause()):
                self._ready(key.data, listener, wake)
            self._observers.reap()
        self._jobs.finish()
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
        """Run the clocks and return how long nothing can happen by itself.

        They rest while a change is under way; the kernel's own clocks never do.
        """
        if self._jobs.changing:
            return self._observers.next_timeout()
        try:
            self._let_go()
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
        elif source is self._jobs:
            self._finished()
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
        """Return the answer, or None when it comes later."""
        try:
            request = parse_request(message)
            check_attached(request, attached)
        except ValueError as error:
            return Answer(False, safe_text(f"not understood: {error}"), 2)
        return self._serve(peer, request, attached)

    def _serve(self, peer: Peer, request: Request, attached: int | None) -> Answer | None:
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
                return guarded(request, lambda: self._status(peer, request))
            case Apply() | Keep() | Undo() if peer.hello.readonly:
                return Answer(False, "read-only: nothing was changed", 1)
        self._start_job(peer, request, os.dup(attached) if attached is not None else None)
        return None

    def _start_job(self, peer: Peer, request: Request, attached: int | None) -> None:
        owner = peer if peer.hello is not None and peer.hello.role == "console" else None

        def work() -> Answer:
            try:
                return guarded(request, lambda: carry_out(self._service, request, attached, owner))
            finally:
                if attached is not None:
                    os.close(attached)

        peer.waiting = True
        self._selector.unregister(peer.sock)  # its next request waits until this one is answered
        self._jobs.start(Job(peer, work, changes=not isinstance(request, Why)))

    def _finished(self) -> None:
        for job, answer in self._jobs.done():
            job.peer.waiting = False
            try:
                job.peer.send(answer)
                self._selector.register(job.peer.sock, selectors.EVENT_READ, job.peer)
            except PeerGone:
                self._drop(job.peer)

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
        self._fast.interfaces.update(request.interfaces)
        try:
            loading = self._observers.start(peer, request)
        except OSError as error:
            return Answer(False, f"the observers could not be started: {error.strerror}; try again", 1)
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
        self._gone.append(peer)
        if not self._jobs.changing:
            try:
                self._let_go()
            except FwtopError as error:
                syslog.syslog(syslog.LOG_ERR, safe_text(error))

    def _let_go(self) -> None:
        """Take back what clients that went away had not confirmed."""
        while self._gone:
            self._service.owner_gone(self._gone.pop())
