"""Programs that are not root's: a socket of their own, and what each of them may ask (docs/API.md).

Everybody may connect where the operator's [access] grants anything. Who it is, is the kernel's word, taken at
the connection; what that allows, the file's at each request, so that a grant taken back is gone at once. The
worker reads the file, as a disk could block the event loop.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.limits import Limits
from fwtop.guardian.serving.connections import Connections
from fwtop.guardian.serving.peer import Peer, copy_of
from fwtop.guardian.serving.worker import Worker
from fwtop.model.console_scope import CONSOLE
from fwtop.model.protocol import (
    API_VERSION,
    PROGRAM,
    SCOPES,
    Answer,
    Apply,
    Hello,
    NumberedRequest,
    Request,
    Status,
)

SUFFIX = ".api"


class Asked(Struct, frozen=True):
    """A request whose permission is being looked up."""

    peer: Peer
    asked: NumberedRequest
    attached: int | None  # a copy, closed once the request was served


class Programs:
    """The programs' socket and their permissions; of the event loop's thread."""

    def __init__(
        self,
        path: Path,
        worker: Worker,
        connections: Connections,
        limits: Callable[[], tuple[Limits, tuple[str, ...]]],
    ) -> None:
        """Take the socket's path, and what reads the operator's file in the worker."""
        self.granted = False  # somebody but root may come
        self.listener = listen(path)
        self._path = path
        self._worker = worker
        self._connections = connections
        self._limits = limits

    def renew(self) -> None:
        """Have the operator's file read again: it says whether others than root may connect."""

        def done(answer: Answer) -> None:
            if answer.ok and answer.data["granted"] != self.granted:
                self.granted = answer.data["granted"]
                self._path.chmod(0o666 if self.granted else 0o600)

        self._worker.ask(Status(), lambda: {"granted": self._limits()[0].access.granted}, done)

    def admit(
        self,
        peer: Peer,
        asked: NumberedRequest,
        attached: int | None,
        serve: Callable[[Asked, tuple[str, ...]], None],
    ) -> None:
        """Have a program's scopes looked up; then `serve` its request, or answer what is missing."""
        ready = Asked(peer, asked, copy_of(attached))

        def done(answer: Answer) -> None:
            try:
                refused = answer if not answer.ok else refusal(asked.request, answer.data["scopes"])
                if refused is not None:
                    self._connections.reply(peer, refused)
                elif peer in self._connections:
                    serve(ready, answer.data["scopes"])
            finally:
                if ready.attached is not None:
                    os.close(ready.attached)

        self._connections.suspend(peer)
        self._worker.ask(asked.request, lambda: {"scopes": self._scopes(peer)}, done)

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()
        self._path.unlink(missing_ok=True)

    def _scopes(self, peer: Peer) -> tuple[str, ...]:
        return self._limits()[0].access.scopes(peer.uid, peer.groups)


def greet(hello: Hello) -> Answer | None:
    """Return why a program's hello is refused, None if it isn't."""
    if hello.role != PROGRAM:
        return Answer(False, f"this socket is for programs: say hello with the role {PROGRAM!r}", 2)
    if hello.version != API_VERSION:
        return Answer(False, f"this guardian speaks version {API_VERSION}, not {hello.version}", 2)
    return None


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
        return Answer(False, f"{request.verb()} is not for programs; nothing was changed", 2)
    if request.scope not in scopes:
        line = f"{request.verb()} needs the scope {request.scope!r}, which you lack; nothing was changed"
        return Answer(False, line, 3)
    if getattr(request, "force", False):
        return Answer(False, "a program may not force: use the fwtop command; nothing was changed", 1)
    return None


def signed(request: Request, by: str) -> Request:
    """Return a request whose rule says who asked for it; a console adds by what key."""
    if not isinstance(request, Apply) or not by:
        return request
    said = request.rule.get("created_by", "")
    if by == "console":
        by = CONSOLE + (said.removeprefix(CONSOLE) if isinstance(said, str) else "")
    return replace(request, rule={**request.rule, "created_by": by})


def listen(path: Path, most: int = 256) -> socket.socket:
    """Listen at a socket of root's alone; `most` wait in connect(2) until somebody accepts."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    path.unlink(missing_ok=True)  # ours alone: the lock is held
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(most)
    return listener
