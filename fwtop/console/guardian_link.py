"""The console's line to the guardian: one request, one answer, from any thread."""

from __future__ import annotations

import socket
import threading

from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_MESSAGE, Answer, Request, encode_request, parse_answer

_ANSWER_SECONDS = 30.0


class GuardianLost(FwtopError):
    """The guardian does not answer any more; active rules expire in the kernel by themselves."""


class GuardianLink:
    """A connected SOCK_SEQPACKET socket on which `Hello` was already said."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(_ANSWER_SECONDS)
        self._lock = threading.Lock()
        self.lost = ""  # why, once it is

    def ask(self, request: Request) -> Answer:
        """Send a request and return its answer, whatever it says; raises GuardianLost."""
        with self._lock:
            if self.lost:
                raise GuardianLost(self.lost)
            try:
                self._socket.send(encode_request(request))
                message = self._socket.recv(MAX_MESSAGE)
            except OSError as error:
                raise self._give_up(f"the guardian does not answer ({error.strerror or error})") from None
            if not message:
                raise self._give_up("the guardian has ended")
            return parse_answer(message)

    def demand(self, request: Request) -> Answer:
        """Ask and raise FwtopError when the guardian refuses."""
        answer = self.ask(request)
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        return answer

    def close(self) -> None:
        """Hang up: the guardian takes unconfirmed rules back."""
        self._socket.close()

    def _give_up(self, why: str) -> GuardianLost:
        # Not one late answer may be taken for that of the next request: this line is over.
        self.lost = why
        self._socket.close()
        return GuardianLost(why)
