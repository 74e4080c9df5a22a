"""The clients' connections: accepted, read, answered and dropped without ever blocking the event loop."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from fwtop.client.connection import MAX_ANSWER
from fwtop.guardian.serving.descriptor_receiver import DescriptorReceiver, Received
from fwtop.guardian.serving.peer import Client, Peer, PeerGone, close_aside, encode_success
from fwtop.kernel.descriptors import OUT_OF_DESCRIPTORS, Spare
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer
from fwtop.model.text import safe_text

MAX_CONNECTIONS = 256
_RESERVED = 64  # of them for those who come through the socket, which is root's alone
MAX_OF_PROGRAMS = 64  # and so many are for these, whom any user may start
MAX_OF_USER = 8  # of a user's programs
MAX_OF_CLIENT = 4  # a console has three, and one more while it replaces a broken one
_ACCEPTED_AT_ONCE = 64
_SPARE = 8  # descriptors for root's connections where there are no others
_UNHEARD_SECONDS = 1.0  # without any, nobody is listened to for so long
_MAX_REFUSED = 128  # connections too many that wait for their first request, so that they learn why
_REFUSED_SECONDS = 2.0
_STALLED_SECONDS = 10.0  # a client that does not read its answer for so long is dropped
_TAKEN_SECONDS = 60.0  # and one that has not read all of it
_STUCK = "descriptors that you sent before can't be closed yet: their file system does not answer"
_DISPLACED = "the guardian has too many connections: this one gives way to another"


class Connections:
    """All open connections, registered with the selector of the event loop."""

    def __init__(self, selector: selectors.BaseSelector, client_gone: Callable[[Client], None]) -> None:
        """Take the loop's selector, and what is called once a client's last connection is closed."""
        self._selector = selector
        self._client_gone = client_gone
        self._peers: set[Peer] = set()
        self._refused: dict[Peer, float] = {}  # → when it was refused, oldest first
        self._aside: dict[int, Peer] = {}  # task of the receiver → whose message it receives
        self.receiver = DescriptorReceiver()
        self._spare = Spare(_SPARE)
        # Listening sockets that are not listened to → until when, and the selector's data
        self._unheard: dict[socket.socket, tuple[float, object]] = {}

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._peers)

    def __contains__(self, peer: object) -> bool:
        """Return whether a connection is still open."""
        return peer in self._peers or peer in self._refused

    def accept(self, listener: socket.socket, *, programs: bool = False) -> None:
        """Accept what waits at a listening socket, which is root's or that for programs.

        Without descriptors, root's get those that were kept back, and who finds none waits.
        """
        for _ in range(_ACCEPTED_AT_ONCE):
            if programs and not self._spare.whole:
                self._leave_waiting(listener)
                return
            try:
                peer = Peer.accept(listener, self.receiver, program=programs)
            except OSError as error:  # none left, or gone already
                if error.errno not in OUT_OF_DESCRIPTORS:
                    return
                if programs or not self._spare.give():
                    self._leave_waiting(listener)
                    return
                continue
            if peer is not None and peer.program:
                self._admit_program(peer)
            elif peer is not None:
                self.admit(peer)

    def _leave_waiting(self, listener: socket.socket) -> None:
        """Don't listen to a socket for a while: it would wake the loop all the time."""
        known = self._selector.unregister(listener)
        self._unheard[listener] = (time.monotonic() + _UNHEARD_SECONDS, known.data)

    def _admit_program(self, peer: Peer) -> None:
        """Add a program's connection within their limits; it takes the place of a stranger at most."""
        others = [item for item in self._peers if item.program]
        if sum(item.uid == peer.uid for item in others) >= MAX_OF_USER:
            self._refuse(peer, f"a user's programs have at most {MAX_OF_USER} connections: close some")
            return
        if len(others) >= MAX_OF_PROGRAMS or len(self._peers) >= MAX_CONNECTIONS - _RESERVED:
            strangers = [item for item in others if item.client is None]
            if not strangers:
                self._refuse(peer, "the guardian has too many connections of programs: try again later")
                return
            self.dismiss(min(strangers, key=lambda item: item.used), _DISPLACED)
        self._peers.add(peer)
        self._listen(peer)

    def admit(self, peer: Peer) -> None:
        """Add a new connection; at the limit it takes the place of the least useful one."""
        if len(self._peers) >= MAX_CONNECTIONS:
            self.dismiss(self._least_useful(), _DISPLACED)
        self._peers.add(peer)
        self._listen(peer)

    def _refuse(self, peer: Peer, why: str) -> None:
        """Answer a connection's first request with the reason; at the limit the oldest waits no longer."""
        if len(self._refused) >= _MAX_REFUSED:
            oldest = next(iter(self._refused))
            self.dismiss(oldest, oldest.refusal)
        peer.refusal = why
        self._refused[peer] = time.monotonic()
        self._listen(peer)

    def dismiss(self, peer: Peer, why: str, code: int = 1, number: int | None = None) -> None:
        """Close a connection with a last answer, to the request of that number or the present one."""
        crowded = why in (peer.refusal, _DISPLACED)
        answer = Answer(
            False, safe_text(why), code, number=peer.number if number is None else number,
            reason="too_many" if crowded else "not_understood" if code == 2 else "", retryable=crowded,
        )  # fmt: skip
        with contextlib.suppress(PeerGone):
            peer.send(answer)
        self.drop(peer)

    def branch(self, peer: Peer, client: Client) -> socket.socket:
        """Give the client of `peer` another connection and return its end of it; evicts nobody.

        Raises FwtopError: only root gets in through the socket, but whoever took over a console can ask
        for any number of these. Raises OSError.
        """
        if len(client.connections) >= MAX_OF_CLIENT:
            raise FwtopError(f"a client has at most {MAX_OF_CLIENT} connections")
        if len(self._peers) >= MAX_CONNECTIONS - _RESERVED:
            raise FwtopError("the guardian has too many connections: close other screens")
        return self.open(client, peer.pid)

    def open(self, client: Client, pid: int) -> socket.socket:
        """Open a connection for a client that needs to say no hello, and return its end; raises OSError."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other = Peer.of(mine, pid, self.receiver)
        self.admit(other)
        other.client = client
        client.connections.add(other)
        return theirs

    def suspend(self, peer: Peer) -> None:
        """Leave the next request of a connection in its socket until the current one is answered."""
        peer.waiting = True
        self._listen(peer)

    def receive_aside(self, peer: Peer) -> None:
        """Receive aside a connection's next message, which brings descriptors."""
        number = self.receiver.receive(peer.sock, peer.whose)
        if not number:
            self.dismiss(peer, _STUCK)
            return
        self._aside[number] = peer
        self.suspend(peer)

    def collect(self) -> list[tuple[Peer, Received]]:
        """Return what the receiver received of connections that are still open."""
        found = []
        for received in self.receiver.collect():
            peer = self._aside.pop(received.number)
            if peer in self and received.message:
                peer.waiting, peer.used = False, time.monotonic()
                self._listen(peer)
                found.append((peer, received))
                continue
            if received.memory_file is not None:
                os.close(received.memory_file)
            if peer in self:
                self.drop(peer)
        return found

    def reply(self, peer: Peer, answer: Answer, descriptors: list[int] | None = None) -> None:
        """Answer the current request; `descriptors` are closed once they are sent."""
        peer.waiting = False
        if peer not in self._peers:
            close_aside(descriptors or [])
            return
        numbered = replace(answer, number=peer.number)
        self._drop_if_gone(peer, lambda: peer.send(numbered, descriptors))

    def reply_encoded(self, peer: Peer, data: Mapping[str, bytes]) -> None:
        """Answer the current request with data that is encoded already; clients share it."""
        peer.waiting = False
        if peer not in self._peers:
            return
        self._drop_if_gone(peer, lambda: peer.send_encoded(encode_success(peer.number, data)))
        if peer.client is not None and sum(item.unread for item in peer.client.connections) > MAX_ANSWER:
            self.drop(peer)  # each may hold another version of the data

    def flush(self, peer: Peer) -> None:
        """Send the rest of an answer, as far as the client takes it."""
        self._drop_if_gone(peer, peer.flush)

    def reopen(self, now: float) -> list[float]:
        """Listen to sockets again that there was no descriptor for; returns the seconds until the next."""
        if self._unheard:
            self._spare.fill()
        for listener, (until, data) in list(self._unheard.items()):
            if until <= now:
                del self._unheard[listener]
                self._selector.register(listener, selectors.EVENT_READ, data)
        return [until - now for until, _ in self._unheard.values()]

    def drop_stalled(self, now: float) -> list[float]:
        """Drop the clients that don't read their answers; returns the seconds until the others time out."""
        ends = {
            peer: min(peer.used + _STALLED_SECONDS, peer.answered + _TAKEN_SECONDS)
            for peer in self._peers
            if peer.out
        }
        for peer in [peer for peer, end in ends.items() if end < now]:
            self.drop(peer)
        silent = {peer: at + _REFUSED_SECONDS for peer, at in self._refused.items()}
        for peer in [peer for peer, end in silent.items() if end < now]:
            self.dismiss(peer, peer.refusal)
        return [end - now for end in (*ends.values(), *silent.values()) if end >= now]

    def drop(self, peer: Peer) -> None:
        """Close a connection."""
        self._peers.discard(peer)
        self._refused.pop(peer, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.sock)
        peer.close()
        self._spare.fill()
        client = peer.client
        if client is None:
            return
        client.connections.discard(peer)
        if not client.connections:
            self._client_gone(client)

    def drop_all(self, words: Answer | None = None) -> None:
        """Close all connections, with these last words for clients."""
        for peer in [*self._peers, *self._refused]:
            if words is not None and peer.client is not None:
                with contextlib.suppress(PeerGone):
                    peer.send(words, None)
            self.drop(peer)

    def _drop_if_gone(self, peer: Peer, work: Callable[[], None]) -> None:
        try:
            work()
            self._listen(peer)
        except PeerGone:
            self.drop(peer)

    def _listen(self, peer: Peer) -> None:
        """Wait until the rest of an answer can be sent, or for a request unless one is being served."""
        events = selectors.EVENT_WRITE if peer.out else 0 if peer.waiting else selectors.EVENT_READ
        known = self._selector.get_map().get(peer.sock)
        if known is None:
            if events:
                self._selector.register(peer.sock, events, peer)
        elif not events:
            self._selector.unregister(peer.sock)
        elif known.events != events:
            self._selector.modify(peer.sock, events, peer)

    def _least_useful(self) -> Peer:
        """Return an idle connection: one that never said hello, else one that neither watches nor owns rules.

        Among these the least recently used one of the process with most connections. If there is none, one
        of that process whatever it does: a newcomer may be the operator, who wants to take a rule back.
        """
        idle = [peer for peer in self._peers if not peer.waiting and not peer.out]
        strangers = [peer for peer in idle if peer.client is None]
        passive = [
            peer
            for peer in idle
            if peer.client is not None and peer.client.slot is None and not peer.client.owns
        ]
        of = Counter(peer.pid for peer in self._peers)
        return min(strangers or passive or self._peers, key=lambda peer: (-of[peer.pid], peer.used))
