"""One client's connection: messages in and out, never blocking, never trusting."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from fwtop.client.connection import MAX_ANSWER
from fwtop.guardian.serving.descriptor_receiver import DescriptorReceiver
from fwtop.kernel.children import enlarge
from fwtop.kernel.descriptors import close_all
from fwtop.model.messages import LAST, MAX_MESSAGE, MORE, PART, Answer, encode_answer, number_in
from fwtop.model.protocol import Hello

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_SO_PEERGROUPS = 59  # asm-generic/socket.h
TOO_LONG = f"has at most {MAX_MESSAGE:,} bytes"
_MOST_GROUPS = 256  # socket.getsockopt takes no more than 1,024 bytes


def copy_of(descriptor: int | None) -> int | None:
    """Return a copy of a memory file's descriptor, for somebody who needs it longer; raises OSError."""
    return None if descriptor is None else os.dup(descriptor)


def close_aside(descriptors: Iterable[int]) -> None:
    """Close descriptors of our own; those that detach observers wait for the kernel."""
    closing = list(descriptors)
    if closing:
        threading.Thread(target=_close, args=(closing,), name="fwtop-close", daemon=True).start()


class PeerGone(Exception):
    """The client closed, or does not take its answers."""


class NotAMessage(Exception):
    """The client broke the protocol's frame; the text says how."""

    def __init__(self, why: str, number: int) -> None:
        super().__init__(why)
        self.number = number  # of the request, 0 where none can be read


class Client(Struct, eq=False):
    """Who said hello, on one connection or on several: rules and observers are its own, not theirs."""

    hello: Hello
    slot: int | None = None  # of its observers
    held: list[int] = field(default_factory=list)  # descriptors that keep observers attached
    connections: set[Peer] = field(default_factory=set)
    owns: bool = False  # provisional rules may fall with it
    seen: set[str] = field(default_factory=set)  # ids of attacks that it told of and that go on


class Peer(Struct, eq=False):
    """A connection. `waiting`: a request is under way, the next ones wait in the socket."""

    sock: socket.socket
    pid: int
    receiver: DescriptorReceiver
    uid: int = 0
    groups: frozenset[int] = frozenset()  # of a program's process
    program: bool = False  # it came through the socket for programs
    client: Client | None = None  # None: hello was not said yet
    waiting: bool = False
    number: int = 0  # of the request that is answered next
    used: float = field(default_factory=time.monotonic)  # when it last asked or took something
    answered: float = 0.0  # when `out` was filled
    refusal: str = ""  # why its first request gets no other answer
    out: deque[tuple[list[bytes | memoryview], list[int]]] = field(default_factory=deque)

    @staticmethod
    def accept(
        listener: socket.socket, receiver: DescriptorReceiver, *, program: bool = False
    ) -> Peer | None:
        """Take a connection; None when it is not root's and no program's.

        Raises BlockingIOError when there is none.
        """
        sock, _ = listener.accept()
        try:
            pid, uid, groups = identity_of(sock)
        except OSError:
            uid, program = -1, False
        if uid != 0 and not program:
            receiver.close(sock, ("user", uid))
            return None
        peer = Peer.of(sock, pid, receiver)
        if program:
            peer.uid, peer.groups, peer.program = uid, groups, True
        return peer

    @staticmethod
    def of(sock: socket.socket, pid: int, receiver: DescriptorReceiver) -> Peer:
        """Return the guardian's end of a connection of process `pid`."""
        sock.setblocking(False)
        enlarge(sock)
        return Peer(sock, pid, receiver)

    def receive(self) -> bytes:
        """Return one message, which brings no descriptors; empty: there is none.

        Raises PeerGone at the end, and NotAMessage when it is too long.
        """
        try:
            message, _, flags, _ = self.sock.recvmsg(MAX_MESSAGE)
        except BlockingIOError:
            return b""
        except OSError:
            raise PeerGone from None
        if not message:
            raise PeerGone
        if flags & socket.MSG_TRUNC:
            raise NotAMessage(f"a message {TOO_LONG}", number_in(message))
        self.used = time.monotonic()
        return message

    @property
    def whose(self) -> tuple[str, int]:
        """Who is at the other end: a user's programs, or one of root's processes."""
        return ("user", self.uid) if self.program else ("process", self.pid)

    @property
    def unread(self) -> int:
        """How many bytes the client has not taken yet."""
        return sum(len(buffer) for message, _ in self.out for buffer in message)

    def send(self, answer: Answer, descriptors: list[int] | None = None) -> None:
        """Send an answer, or as much of it as the client takes now; descriptors are closed once sent.

        Raises PeerGone when the client is not there any more.
        """
        self.send_encoded([encode_answer(answer)], descriptors)

    def send_encoded(self, pieces: list[bytes], descriptors: list[int] | None = None) -> None:
        """Send an encoded answer like `send`. Clients share the pieces; raises PeerGone."""
        if sum(map(len, pieces)) > MAX_ANSWER:
            pieces = [encode_answer(Answer(False, "the answer is too long", 1, number=self.number))]
            _close(descriptors or [])
            descriptors = None
        messages = split_answer(pieces)
        self.out += [(message, []) for message in messages[:-1]]
        self.out.append((messages[-1], descriptors or []))
        self.used = self.answered = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the client takes it; raises PeerGone."""
        while self.out:
            message, descriptors = self.out[0]
            try:
                if descriptors:
                    socket.send_fds(self.sock, message, descriptors)
                else:
                    self.sock.sendmsg(message)
            except BlockingIOError:
                return
            except OSError:
                raise PeerGone from None
            _close(descriptors)
            self.out.popleft()
            self.used = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        for _, descriptors in self.out:
            _close(descriptors)
        self.out.clear()
        self.receiver.close(self.sock, self.whose)


def identity_of(sock: socket.socket) -> tuple[int, int, frozenset[int]]:
    """Return process, user and groups of who connected, as the kernel noted them then; raises OSError."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    return pid, uid, _groups(sock) | {gid}


def _groups(sock: socket.socket) -> frozenset[int]:
    """Return the supplementary groups that a peer had when it connected; none if they are too many."""
    numbers = array.array("I")
    with contextlib.suppress(OSError):
        numbers.frombytes(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * numbers.itemsize))
    return frozenset(numbers)


def _close(descriptors: list[int]) -> None:
    close_all(descriptors)


def encode_success(number: int, data: Mapping[str, bytes]) -> list[bytes]:
    """Encode an answer whose data is encoded already, in pieces that are not copied."""
    pieces = [f'{{"ok": true, "number": {number}, "data": {{'.encode()]
    for at, (name, value) in enumerate(data.items()):
        pieces += [f"{', ' if at else ''}{json.dumps(name)}: ".encode(), value]
    return [*pieces, b"}}"]


def split_answer(pieces: Sequence[bytes]) -> list[list[bytes | memoryview]]:
    """Split an encoded answer into messages, each a list of buffers: itself, or parts of it.

    A part starts with MORE, the last one with LAST. Long pieces are not copied.
    """
    if sum(map(len, pieces)) <= PART:
        return [[b"".join(pieces)]]
    views = [
        memoryview(piece)[start : start + PART] for piece in pieces for start in range(0, len(piece), PART)
    ]
    return [[LAST if view is views[-1] else MORE, view] for view in views]
