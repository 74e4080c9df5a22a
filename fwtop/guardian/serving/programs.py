"""Programs that are not root's: a socket of their own, what each of them may ask, and policies (docs/API.md).

Everybody may connect where the operator's [access] grants anything. Who it is, is the kernel's word, taken at
the connection; what that allows, the file's at each request, so that a grant taken back is gone at once. The
worker reads the file, as a disk could block the event loop.

A short-lived child (`fwtop.policy.agent`) works on each policy as the command line does: what it changes, it
asks of this guardian over a connection of its own. One that tries a policy lives until its program keeps
that, takes it back, or is gone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.limits import Limits
from fwtop.guardian.serving.connections import Connections
from fwtop.guardian.serving.peer import Client, Peer, copy_of
from fwtop.guardian.serving.worker import Worker
from fwtop.kernel import children
from fwtop.kernel.descriptors import close_all
from fwtop.model.console_scope import CONSOLE
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, NumberedRequest, ProtocolError, encode_request
from fwtop.model.protocol import (
    API_VERSION,
    MAX_POLICY,
    PROGRAM,
    SCOPES,
    Apply,
    Hello,
    PolicyChange,
    PolicyRead,
    Request,
    Status,
)

SUFFIX = ".api"
_AGENT = "fwtop.policy.agent"
_STREAM = "fwtop.api.main"
_MOST, _MOST_OF_USER = 4, 2  # children: each is a Python with the lists of a policy


class Programs:
    """The programs' socket and their permissions; of the event loop's thread."""

    def __init__(
        self,
        path: Path,
        worker: Worker,
        connections: Connections,
        limits: Callable[[], tuple[Limits, tuple[str, ...]]],
        arguments: Sequence[str],
    ) -> None:
        """Take the socket's path, what reads the operator's file in the worker, and how a guardian starts."""
        self.granted = False  # somebody but root may come
        self.listener = listen(path)
        self._path = path
        self._worker = worker
        self._connections = connections
        self._limits = limits
        self._arguments = arguments
        self._started: list[subprocess.Popen[bytes]] = []

    def renew(self) -> None:
        """Have the operator's file read again: it says whether others than root may connect."""

        def done(answer: Answer) -> None:
            if answer.ok and answer.data["granted"] != self.granted:
                self.granted = answer.data["granted"]
                self._path.chmod(0o666 if self.granted else 0o600)
                if answer.data["streamed"]:
                    self._start_stream()

        def read() -> dict[str, bool]:
            access = self._limits()[0].access
            return {"granted": access.granted, "streamed": access.streamed}

        self._worker.ask(Status(), read, done)

    def admit(
        self,
        peer: Peer,
        asked: NumberedRequest,
        attached: int | None,
        serve: Callable[[Peer, NumberedRequest, int | None, tuple[str, ...]], None],
    ) -> None:
        """Have a program's scopes looked up; then `serve` its request, or answer what is missing."""
        kept = copy_of(attached)

        def done(answer: Answer) -> None:
            try:
                refused = answer if not answer.ok else refusal(asked.request, answer.data["scopes"])
                if refused is not None:
                    self._connections.reply(peer, refused)
                elif peer in self._connections:
                    serve(peer, asked, kept, answer.data["scopes"])
            finally:
                if kept is not None:
                    os.close(kept)

        self._connections.suspend(peer)
        self._worker.ask(
            asked.request, lambda: {"scopes": self._limits()[0].access.scopes(peer.uid, peer.groups)}, done
        )

    def _start_stream(self) -> None:
        """Start the server of the stream, which ends at once where there is one; it outlives this process."""
        self._started = [process for process in self._started if process.poll() is None]
        with contextlib.suppress(OSError):  # no memory or no process: started by hand then
            self._started.append(children.start(_STREAM, *self._arguments, descriptors=()))

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()
        self._path.unlink(missing_ok=True)


def greet(hello: Hello) -> Answer | None:
    """Return why a program's hello is refused, None if it isn't."""
    if hello.role != PROGRAM:
        return Answer(False, f"this socket is for programs: say hello with the role {PROGRAM!r}", 2)
    low, high = hello.versions or (hello.version, hello.version)
    if not low <= API_VERSION <= high:
        asked = f"{low}" if low == high else f"{low} to {high}"
        line = f"this guardian speaks version {API_VERSION}, not {asked}"
        return Answer(False, line, 2, reason="version", field="versions" if hello.versions else "version")
    return None


def speaks_for_another(peer: Peer, hello: Hello) -> bool:
    """Say whether root's server of the stream connects for a program; it has that one's rights then."""
    if hello.role != PROGRAM or hello.uid is None:
        return False
    peer.program, peer.uid, peer.groups = True, hello.uid, frozenset(hello.groups)
    return True


def refusal(request: Request, scopes: tuple[str, ...]) -> Answer | None:
    """Return the answer to a request that a program may not make, None if it may."""
    if isinstance(request, Hello):
        if scopes:
            return None
        return Answer(
            False,
            f"no access: [access] in guard.toml gives none of your groups a scope ({', '.join(SCOPES)})",
            3,
        )
    if request.scope is None:
        line = f"{request.verb()} is not for programs; nothing was changed"
        return Answer(False, line, 2, reason="unknown_verb", field="verb")
    if request.scope not in scopes:
        line = f"{request.verb()} needs the scope {request.scope!r}, which you lack; nothing was changed"
        return Answer(False, line, 3)
    if getattr(request, "force", False):
        line = "a program may not force: use the fwtop command; nothing was changed"
        return Answer(False, line, 1, reason="no_access", field="force")
    return None


def signed(request: Request, by: str) -> Request:
    """Return a request whose rule says who asked for it; a console adds by what key."""
    if not isinstance(request, Apply) or not by:
        return request
    said = request.rule.get("created_by", "")
    if by == "console":
        by = CONSOLE + (said.removeprefix(CONSOLE) if isinstance(said, str) else "")
    return replace(request, rule={**request.rule, "created_by": by})


def listen(path: Path, most: int = 256, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
    """Listen at a socket of root's alone; `most` wait in connect(2) until somebody accepts."""
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    path.unlink(missing_ok=True)  # ours alone: the lock is held
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(most)
    return listener


class Agent(Struct, eq=False):
    """A child at work for a client's connection."""

    peer: Peer
    client: Client
    sock: socket.socket
    process: subprocess.Popen[bytes]
    asked: bool = False  # the program waits for an answer


def _not_tried() -> FwtopError:
    line = "no policy is tried on this connection, or not any more"
    return FwtopError(line, reason="not_found", field="action")


class Policies:
    """The children; of the event loop's thread, which passes messages between them and their programs."""

    def __init__(
        self, selector: selectors.BaseSelector, connections: Connections, arguments: Sequence[str]
    ) -> None:
        """Take what to read from, and the arguments that a child gets behind its descriptors and the user."""
        self._selector = selector
        self._connections = connections
        self._arguments = arguments
        self._agents: set[Agent] = set()
        self._ended: list[subprocess.Popen[bytes]] = []

    def serve(
        self, peer: Peer, client: Client, request: PolicyRead | PolicyChange, attached: int | None
    ) -> None:
        """Have a child work on a request, or say why not."""
        agent = next((item for item in self._agents if item.client is client), None)
        decides = isinstance(request, PolicyChange) and request.action in ("keep", "renew", "undo")
        why = None
        if len(request.text.encode()) > MAX_POLICY:
            line = f"a policy's text has up to {MAX_POLICY:,} bytes: long lists go beside it"
            why = FwtopError(line, reason="too_long", field="text")
        elif decides and agent is None:
            why = _not_tried()
        elif not decides and agent is not None:
            line = "a policy is tried on this connection: keep or undo it first"
            why = FwtopError(line, reason="refused", field="action")
        elif agent is None and self._too_many(peer.uid):
            line = "too many programs are at policies now: try again"
            why = FwtopError(line, reason="busy", retryable=True)
        if why is None:
            try:
                agent = agent or self._start(peer, client)
                agent.asked = True
                self._connections.suspend(peer)
                socket.send_fds(agent.sock, [encode_request(request)], [] if attached is None else [attached])
                return
            except OSError as error:
                if agent is not None:
                    self._drop(agent)
                over = decides and isinstance(error, BrokenPipeError)  # its time ended just now
                line = f"the policy's process could not be asked: {error.strerror}"
                why = _not_tried() if over else FwtopError(line, reason="unavailable", retryable=True)
        answer = Answer.of(why)
        self._connections.reply(peer, replace(answer, error=f"{answer.error}; nothing was changed"))

    def _ready(self, agent: Agent) -> None:
        """Pass on what a child answered; nothing more comes from it unless it tries a policy."""
        descriptors: list[int] = []
        try:
            answer, descriptors = children.receive(agent.sock)
        except (OSError, ProtocolError):
            line = "the policy's process ended; what it had begun is undone by the next one"
            answer = Answer(False, line, 1)
        if not answer.data.get("trial"):
            self._drop(agent)
        if agent.asked:
            agent.asked = False
            self._connections.reply(agent.peer, answer, descriptors)
        else:
            close_all(descriptors)

    def gone(self, client: Client) -> None:
        """Tell a client's child that nobody waits for it: it takes back what it tries, and ends."""
        for agent in [item for item in self._agents if item.client is client]:
            self._drop(agent)

    def reap(self) -> None:
        """Collect children that ended."""
        self._ended = [process for process in self._ended if process.poll() is None]

    def finish(self) -> None:
        """Leave all children alone: they end by themselves."""
        for agent in [*self._agents]:
            self._drop(agent)

    def _too_many(self, uid: int) -> bool:
        mine = sum(item.peer.uid == uid for item in self._agents)
        return len(self._agents) >= _MOST or mine >= _MOST_OF_USER

    def _start(self, peer: Peer, client: Client) -> Agent:
        """Start a child with two sockets: one for its program's requests, one to ask us; raises OSError."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._connections.open(Client(Hello("cli")), os.getpid()) as inner:
            try:
                children.enlarge(mine)
                children.enlarge(theirs)
                descriptors = [theirs.fileno(), inner.fileno()]
                process = children.start(
                    _AGENT, *map(str, descriptors), str(peer.uid), *self._arguments, descriptors=descriptors
                )
            except OSError:
                mine.close()
                raise
        agent = Agent(peer, client, mine, process)
        self._agents.add(agent)
        self._selector.register(mine, selectors.EVENT_READ, lambda: self._ready(agent))
        return agent

    def _drop(self, agent: Agent) -> None:
        self._agents.discard(agent)
        self._selector.unregister(agent.sock)
        agent.sock.close()
        self._ended.append(agent.process)
