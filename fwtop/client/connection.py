"""A client's end of a connection to the guardian: numbered requests, time limits, answers of any length."""

from __future__ import annotations

import array
import socket
import time

from msgspec import Struct

from fwtop.kernel.descriptors import close_all
from fwtop.model import messages, protocol

_MAX_DESCRIPTORS = 64
MAX_ANSWER = 1 << 26  # bytes; the guardian cuts nothing, but it is not trusted with all of our memory either


class Late(Struct, frozen=True):
    """An answer that came after its client had given up waiting for it."""

    request: protocol.Request
    answer: messages.Answer


class EndedError(ConnectionError):
    """The guardian closed the connection."""


class Connection:
    """One request at a time. A request that took too long goes on; its answer is found in `take_late`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._number = 0
        self._given_up: dict[int, protocol.Request] = {}
        self._late: list[Late] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._received: list[int] = []

    def exchange(
        self, request: protocol.Request, seconds: float, attached: int | None = None
    ) -> tuple[messages.Answer, list[int]]:
        """Send a request and return its answer and the descriptors that came with it, the caller's then.

        `attached` is a descriptor that goes with the request; it stays the caller's. Raises TimeoutError
        when there is no answer within `seconds`, OSError when the connection is lost, ProtocolError when
        the answer makes no sense.
        """
        end = time.monotonic() + seconds
        if isinstance(request, protocol.Hello):  # in the form that guardians of all versions understand
            number, message = 0, messages.encode_request(request)
        else:
            self._number += 1
            number, message = self._number, messages.encode_request(request, self._number, seconds)
        if len(message) > messages.MAX_MESSAGE:
            line = "this request is too long for one message; nothing was changed"
            raise messages.ProtocolError(line, number, "too_long")
        self._sock.settimeout(seconds)
        try:
            socket.send_fds(self._sock, [message], [attached] if attached is not None else [])
        except (BrokenPipeError, ConnectionResetError):  # closed, perhaps after it said why
            return self._last_words()
        self._given_up[number] = request
        while True:
            answer, descriptors = self._read(end)
            unnumbered = not answer.ok and not answer.number and 0 not in self._given_up
            asked = self._given_up.pop(answer.number, None)
            if answer.number == number or unnumbered:
                return answer, descriptors
            self._note_late(asked, answer, descriptors)

    def _last_words(self) -> tuple[messages.Answer, list[int]]:
        """Return the answer that came before the end of the connection, or raise ConnectionError."""
        try:
            while (found := self._read(None))[0].number in self._given_up:
                self._note_late(self._given_up.pop(found[0].number), *found)
        except BlockingIOError:
            raise EndedError("it ended before it answered") from None
        return found

    def take_late(self) -> list[Late]:
        """Return the answers that came too late since the last call, without waiting for more."""
        try:
            while self._given_up:
                answer, descriptors = self._read(None)
                self._note_late(self._given_up.pop(answer.number, None), answer, descriptors)
        except BlockingIOError:
            pass
        found, self._late = self._late, []
        return found

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def detach(self) -> int:
        """Release the socket's descriptor; this object is unusable then."""
        return self._sock.detach()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _note_late(
        self, asked: protocol.Request | None, answer: messages.Answer, descriptors: list[int]
    ) -> None:
        close_all(descriptors)
        if isinstance(
            asked, protocol.Apply | protocol.Keep | protocol.Undo
        ):  # what was only a question is not asked any more
            self._late.append(Late(asked, answer))

    def _read(self, end: float | None) -> tuple[messages.Answer, list[int]]:
        """Read one answer until `end`, or what is there already; what came of it waits for the next call."""
        while True:
            if end is not None and end <= time.monotonic():
                raise TimeoutError("timed out")
            self._sock.settimeout(0.0 if end is None else end - time.monotonic())
            message = self._message()
            if message[:1] not in (messages.MORE, messages.LAST):
                break
            self._size += len(message)
            if self._size > MAX_ANSWER:
                raise messages.ProtocolError("the answer is too long")
            self._parts.append(message[1:])
            if message[:1] == messages.LAST:
                message = b"".join(self._parts)
                self._parts, self._size = [], 0
                break
        descriptors, self._received = self._received, []
        return messages.parse_answer(message), descriptors

    def _message(self) -> bytes:
        room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        message, ancillary, _, _ = self._sock.recvmsg(messages.MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self._received += received
        if not message:
            raise EndedError("it ended before it answered")
        return message
