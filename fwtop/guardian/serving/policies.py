"""Policies for programs (docs/API.md): a short-lived child works on each as the command line does.

The child is `fwtop.policy.agent`: what a policy changes, it asks of this guardian over a connection of
its own. One that tries a policy lives until its program keeps that, takes it back, or is gone.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
from collections.abc import Sequence

from msgspec import Struct

from fwtop.guardian.serving.connections import Connections
from fwtop.guardian.serving.peer import Client, Peer
from fwtop.kernel import children
from fwtop.model.protocol import (
    MAX_POLICY,
    Answer,
    Hello,
    PolicyChange,
    PolicyRead,
    ProtocolError,
    encode_request,
)

_AGENT = "fwtop.policy.agent"
_NOT_TRIED = "no policy is tried on this connection, or not any more"
_MOST, _MOST_OF_USER = 4, 2  # children: each is a Python with the lists of a policy


class Agent(Struct, eq=False):
    """A child at work for a client's connection."""

    peer: Peer
    client: Client
    sock: socket.socket
    process: subprocess.Popen[bytes]
    asked: bool = False  # the program waits for an answer


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
        decides = isinstance(request, PolicyChange) and request.action in ("keep", "undo")
        refused = ""
        if len(request.text.encode()) > MAX_POLICY:
            refused = f"a policy's text has up to {MAX_POLICY:,} bytes: attach long lists"
        elif decides and agent is None:
            refused = _NOT_TRIED
        elif not decides and agent is not None:
            refused = "a policy is tried on this connection: keep or undo it first"
        elif agent is None and self._too_many(peer.uid):
            refused = "too many programs are at policies now: try again"
        if not refused:
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
                refused = _NOT_TRIED if over else f"the policy's process could not be asked: {error.strerror}"
        self._connections.reply(peer, Answer(False, f"{refused}; nothing was changed", 1))

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
            children.close(descriptors)

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
