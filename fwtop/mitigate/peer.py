"""One client's connection: messages in and out, never blocking, never trusting."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass, field

from fwtop.mitigate.allowlist import operator_of
from fwtop.model.address import Prefix
from fwtop.model.protocol import MAX_MESSAGE, Answer, Hello, encode_answer

_CREDENTIALS = struct.Struct("3i")
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; needs CAP_NET_ADMIN


class PeerGone(Exception):
    """The client closed, broke the protocol's frame, or does not take its answers."""


@dataclass(eq=False, slots=True)
class Peer:
    """A connected client. `waiting`: a long request is under way, the next ones wait in the socket."""

    sock: socket.socket
    operator: Prefix | None
    hello: Hello | None = None
    waiting: bool = False
    slot: int | None = None  # of its observers
    held: list[int] = field(default_factory=list)  # descriptors that keep observers attached

    @staticmethod
    def accept(listener: socket.socket) -> Peer | None:
        """Take a connection; None when it is gone already or not root's."""
        try:
            sock, _ = listener.accept()
        except OSError:
            return None
        pid, uid, _ = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != 0:
            sock.close()
            return None
        sock.setblocking(False)
        enlarge(sock)
        return Peer(sock, operator_of(pid))

    def receive(self) -> tuple[bytes, int | None]:
        """Return one message and the descriptor that came with it, if one did.

        Raises PeerGone at the end, or when it is too long or brings more than one.
        """
        try:
            message, descriptors, flags, _ = socket.recv_fds(
                self.sock, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return b"", None
        except OSError:
            raise PeerGone from None
        if not message or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(descriptors) > 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise PeerGone
        return message, descriptors[0] if descriptors else None

    def send(self, answer: Answer, descriptors: list[int] | None = None) -> None:
        """Send one answer; raises PeerGone when the client lets its answers pile up."""
        message = encode_answer(answer)
        if len(message) > MAX_MESSAGE:
            message = encode_answer(Answer(False, "the answer is too long for one message", 1))
            descriptors = None
        try:
            if descriptors:
                socket.send_fds(self.sock, [message], descriptors)
            else:
                self.sock.send(message)
        except OSError:
            raise PeerGone from None

    def close(self) -> None:
        """Close the connection and what it kept attached."""
        self.sock.close()
        for descriptor in self.held:
            os.close(descriptor)
        self.held.clear()


def enlarge(sock: socket.socket) -> None:
    """Let a socket carry messages of MAX_MESSAGE: the system's limit is a fifth of that."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * MAX_MESSAGE)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_MESSAGE)
