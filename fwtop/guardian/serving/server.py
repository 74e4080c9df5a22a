"""The guardian's event loop: one thread that passes requests on and answers back, and never blocks.

Rules, journal and kernel belong to the worker's thread (worker.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from fwtop.guardian.allow.found import Session, note_operator, operator_of
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.serving.changes import ChangeLog, Followers
from fwtop.guardian.serving.connections import Connections
from fwtop.guardian.serving.descriptor_receiver import Received, brings_descriptors
from fwtop.guardian.serving.peer import TOO_LONG, Client, NotAMessage, Peer, PeerGone, close_aside, copy_of
from fwtop.guardian.serving.programs import Policies, Programs, greet, signed, speaks_for_another
from fwtop.guardian.serving.requests import Handlers, carry_out, check_attached, fault
from fwtop.guardian.serving.watching import StatusCache, Watching
from fwtop.guardian.serving.worker import Worker
from fwtop.kernel.links import RouteMonitor
from fwtop.model import console_scope
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, NumberedRequest, ProtocolError, number_in, parse_request
from fwtop.model.protocol import (
    API_VERSION,
    Apply,
    Changes,
    Connect,
    Hello,
    PolicyChange,
    PolicyRead,
    Rescan,
    RuleMode,
    Rules,
    Seen,
    Status,
    Summary,
    Survey,
    Symbols,
    Tracked,
    Undo,
    Watch,
)
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

ROLES = frozenset({"console", "cli"})
_FIRST_CLIENT_SECONDS = 10.0  # a guardian that nobody connects to exits
_LINGER_SECONDS = 0.5  # so that the next command of a script needs no new guardian


class Identity(Struct, frozen=True):
    """What a guardian reports about itself."""

    pid: int
    build: str
    netns: int
    variant: str
    named: bool = False  # the namespace has a name: it ends when somebody deletes it and nobody is in it


class Server:
    """Serves clients until there are neither clients nor active rules."""

    def __init__(
        self,
        handlers: Handlers,
        identity: Identity,
        operators: dict[Session, float],
        compiled: CompiledRules,
        worker: Worker,
        *,
        changes: ChangeLog,
        programs: Path,
        policies: Sequence[str],
        restart: Sequence[str],
    ) -> None:
        """`programs` is the path of their socket, `policies` the arguments of the children for policies.

        `restart` has those of a guardian that works with the same files.
        """
        self._handlers = handlers  # for the worker's thread alone
        self._identity = identity
        self._operators = operators  # SSH sessions that a client came from → when it was last seen
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(self._selector, self._client_gone)
        self._worker = worker
        self._watching = Watching(self._selector, self._connections, worker, compiled, handlers.reports)
        self._programs = Programs(programs, worker, self._connections, handlers.reports.limits, restart)
        self._policies = Policies(self._selector, self._connections, policies)
        self._routes = RouteMonitor()
        self._statuses = StatusCache(worker, handlers.reports, self._reply_status)
        self._changes = changes
        self._followers = Followers(changes, self._connections)
        self._stop = False
        self._terminated = False  # by a signal: perhaps no guardian follows
        self._retired: Answer | None = None  # what to say of the one that follows
        self._idle_at = time.monotonic() + _FIRST_CLIENT_SECONDS

    def run(self, listener: socket.socket) -> None:
        """Serve until idle, replaced by another build, or terminated by SIGTERM or SIGINT."""
        wake, _waker = self._catch_signals()
        self._watching.observers.detach_stale()
        self._worker.start()
        self._programs.renew()
        of_programs = self._programs.listener
        self._listen(listener, lambda: self._connections.accept(listener))
        self._listen(of_programs, lambda: self._connections.accept(of_programs, programs=True))
        self._listen(wake, lambda: _drain(wake))
        self._listen(self._worker.wake, self._worker.deliver)
        self._listen(self._connections.receiver, self._collect)
        self._listen(self._routes, self._routes_changed)
        while not self._stop:
            pause, began = self._pause(), time.monotonic()
            for key, events in self._selector.select(pause):
                if not isinstance(key.data, Peer):
                    key.data()
                elif key.data in self._connections:
                    self._peer_ready(key.data, events)
            self._watching.observers.proceed()
            self._policies.reap()
            self._leave_if_idle(began)
        if self._terminated:
            self._tell_worker(self._handlers.lifecycle.end_sysctls)
        Path(listener.getsockname()).unlink(
            missing_ok=True
        )  # a successor waits where nobody listens any more
        listener.close()
        self._connections.drop_all(self._retired)
        self._worker.finish()
        self._handlers.fleet.finish()
        self._programs.close()
        self._routes.close()
        self._policies.finish()
        self._watching.finish()

    def _catch_signals(self) -> tuple[socket.socket, socket.socket]:
        wake, waker = socket.socketpair()
        wake.setblocking(False)
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the loop: a detaching child ended
        return wake, waker

    def _terminate(self, *_: object) -> None:
        self._stop = self._terminated = True

    def _pause(self) -> float | None:
        """Answer and drop whose time is over; returns how long the loop may sleep."""
        now = time.monotonic()
        times = self._statuses.expire(now) + self._followers.serve(now) + self._connections.drop_stalled(now)
        times += self._connections.reopen(now)
        timeout = self._watching.observers.next_timeout()
        if timeout is not None:
            times.append(timeout)
        if self._connections:
            self._idle_at = now + _LINGER_SECONDS
        elif self._worker.active or self._worker.busy:  # with rules of a former guardian, perhaps
            self._idle_at = max(self._idle_at, now + _LINGER_SECONDS)
        elif self._programs.granted and not self._identity.named:
            pass  # nobody but root could start another one
        else:
            times.append(self._idle_at - now)
        return max(0.0, min(times)) if times else None

    def _leave_if_idle(self, began: float) -> None:
        """Stop where nobody was served for some time, nor came while this process had to wait for a CPU.

        `began` is when the loop last began to look for clients.
        """
        idle = not (self._connections or self._worker.active or self._worker.busy)
        if idle and began >= self._idle_at and (self._identity.named or not self._programs.granted):
            self._stop = True

    def _listen(self, source: FileDescriptorLike, ready: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, ready)

    def _routes_changed(self) -> None:
        if self._routes.changed():
            self._tell_worker(self._handlers.reports.allow_changed)

    def _peer_ready(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._connections.flush(peer)
        elif events & selectors.EVENT_READ:
            self._read(peer)

    def _collect(self) -> None:
        """Start the requests that brought descriptors; a memory file is closed then, whoever has a copy."""
        for peer, received in self._connections.collect():
            try:
                with self._answering(peer):
                    self._take_aside(peer, received)
            finally:
                if received.memory_file is not None:
                    os.close(received.memory_file)

    def _read(self, peer: Peer) -> None:
        """Read and start one request; one each turn of the loop, so that no client starves the others."""
        with self._answering(peer):
            try:
                aside = brings_descriptors(peer.sock)
            except OSError:
                aside = False  # there is none, or the connection has ended
            if aside:
                self._connections.receive_aside(peer)
            elif message := peer.receive():
                self._begin(peer, message, brought=False)

    def _take_aside(self, peer: Peer, received: Received) -> None:
        if received.many or received.too_long:
            why = "brings one descriptor at most" if received.many else TOO_LONG
            raise NotAMessage(f"a message {why}", number_in(received.message))
        self._begin(peer, received.message, received.memory_file, brought=True)

    @contextlib.contextmanager
    def _answering(self, peer: Peer) -> Iterator[None]:
        """Answer whatever a message breaks: the others need their guardian."""
        try:
            yield
        except PeerGone:
            self._connections.drop(peer)
        except NotAMessage as error:
            self._connections.dismiss(peer, f"not understood: {error}", 2, error.number)
        except Exception as error:
            self._connections.dismiss(peer, fault("the request", error))

    def _begin(self, peer: Peer, message: bytes, attached: int | None = None, *, brought: bool) -> None:
        """Start a request; `brought`: a descriptor came with it, which may be no memory file.

        Programs that are not root's need a permission first.
        """
        if peer.refusal:
            self._connections.dismiss(peer, peer.refusal, number=number_in(message))
            return
        try:
            asked = parse_request(message)
            peer.number = asked.number
            check_attached(asked.request, brought, asked.number)
            if brought and attached is None:
                raise ProtocolError("the list is not a memory file", asked.number)
        except ProtocolError as error:
            peer.number = error.number
            self._connections.reply(peer, error.answer())
            return
        request = asked.request
        if peer.client is None and not isinstance(request, Hello):
            self._connections.dismiss(peer, "say hello first; nothing was done", 2)
        elif peer.program or (isinstance(request, Hello) and speaks_for_another(peer, request)):
            self._programs.admit(peer, asked, attached, self._serve_program)
        elif peer.client is None and isinstance(request, Hello):
            self._connections.reply(peer, self._greet(peer, request))
        elif peer.client is not None:
            self._serve_client(peer, peer.client, asked, attached)

    def _serve_program(
        self, peer: Peer, asked: NumberedRequest, attached: int | None, scopes: tuple[str, ...]
    ) -> None:
        request = asked.request
        if peer.client is not None:
            self._serve_client(peer, peer.client, asked, attached)
        elif isinstance(request, Hello):
            refused = greet(request)
            if refused is None:
                peer.client = Client(request)
                peer.client.connections.add(peer)
            about = {
                "guardian": self._about(request.readonly),
                "version": API_VERSION,
                "versions": [API_VERSION, API_VERSION],
                "scopes": scopes,
            }
            self._connections.reply(peer, refused or Answer(True, data=about))

    def _serve_client(self, peer: Peer, client: Client, asked: NumberedRequest, attached: int | None) -> None:
        request = asked.request
        why = console_scope.refusal(request) if client.hello.role == "console" else ""
        match request:
            case Hello():
                self._connections.reply(peer, Answer(False, "hello was said already", 2))
            case _ if why:
                self._connections.reply(peer, Answer(False, why, 3))
            case Connect():
                self._branch(peer, client)
            case Watch() | Rescan() | Survey() | Symbols() | Rules() | Tracked():
                self._watching.serve(peer, client, request)
            case Status():
                self._connections.suspend(peer)
                self._statuses.request(peer, request, asked.seconds)
            case Changes():
                self._followers.request(peer, request)
            case Seen():
                self._changes.seen(peer.pid, client.seen, request.attacks)
                self._connections.reply(peer, Answer(True))
            case Summary():
                self._connections.reply(peer, Answer(True, data=self._changes.fares(request)))
            case _ if request.changes and client.hello.readonly:
                refused = Answer(False, "read-only: nothing was changed", 1, reason="read_only")
                self._connections.reply(peer, refused)
            case PolicyRead() | PolicyChange():
                self._policies.serve(peer, client, request, attached)
            case _:
                self._submit(peer, client, asked, attached)

    def _submit(self, peer: Peer, client: Client, asked: NumberedRequest, attached: int | None) -> None:
        owner = client if client.hello.role == "console" else None
        by = f"program of user {peer.uid}" if peer.program else "console" if owner is not None else ""
        request = signed(asked.request, by)
        client.owns |= owner is not None and isinstance(request, Apply | RuleMode)
        kept = copy_of(attached)

        def done(answer: Answer) -> None:
            if kept is not None:
                os.close(kept)
            self._connections.reply(peer, answer, answer.data.pop("descriptors", None))

        self._connections.suspend(peer)
        end = time.monotonic() + (asked.seconds or request.seconds)
        self._worker.ask(
            request, lambda: carry_out(self._handlers, request, kept, owner, by), done,
            quick=request.quick, end=end, changes=request.changes,
        )  # fmt: skip

    def _greet(self, peer: Peer, hello: Hello) -> Answer:
        if hello.role not in ROLES:
            return Answer(False, "no such role", 2)
        if hello.build != self._identity.build:
            self._stop = True  # rules stay: the journal tells the successor
            words, said = "another build of fwtop took over", {"retired": self._identity.pid}
            self._retired = Answer(False, words, 1, said)
            return self._retired
        peer.client = Client(hello)
        peer.client.connections.add(peer)
        note_operator(self._operators, operator_of(peer.pid))
        self._programs.renew()
        return Answer(True, data={"guardian": self._about(hello.readonly)})

    def _branch(self, peer: Peer, client: Client) -> None:
        try:
            theirs = self._connections.branch(peer, client)
        except (FwtopError, OSError) as error:
            self._connections.reply(peer, Answer(False, safe_text(error), 1))
            return
        self._connections.reply(peer, Answer(True), [theirs.detach()])

    def _reply_status(self, peer: Peer, answer: Answer) -> None:
        """Answer with a status, whose data is encoded."""
        if not answer.ok:
            self._connections.reply(peer, answer)
            return
        about = self._about(peer.client is not None and peer.client.hello.readonly)
        self._connections.reply_encoded(peer, {**answer.data, "guardian": json.dumps(about).encode()})

    def _about(self, readonly: bool) -> dict[str, Any]:
        about = asdict(self._identity)
        del about["named"]
        return about | {"readonly": readonly}

    def _client_gone(self, client: Client) -> None:
        """Detach a client's observers and revert its unconfirmed rules."""
        self._changes.unseen(client.seen)
        close_aside(client.held)
        client.held.clear()
        self._policies.gone(client)
        if client.slot is not None:
            self._watching.observers.detach(client.slot)
        if client.owns:
            self._tell_worker(lambda: self._handlers.lifecycle.owner_gone(client))
        if client.hello.role == "console":
            self._tell_worker(lambda: self._handlers.reports.state.forget_clients(client))

    def _tell_worker(self, do: Callable[[], None]) -> None:
        """Have the worker do something that nobody waits for."""
        self._worker.ask(Undo(), lambda: do() or {}, changes=True)  # type: ignore[func-returns-value]


def _drain(wake: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        wake.recv(4096)
