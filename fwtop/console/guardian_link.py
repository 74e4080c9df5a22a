"""The console's line to the guardian: one request, one answer, from any thread."""

from __future__ import annotations

import os
import socket
import threading

from fwtop.model.bulk import detach_sources
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_MESSAGE, Answer, Apply, Plan, Request, encode_request, parse_answer
from fwtop.model.rule import Rule

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

    def ask(self, request: Request, attached: int | None = None) -> Answer:
        """Send a request and return its answer, whatever it says; raises GuardianLost.

        `attached` is a descriptor that goes with the message; it stays the caller's.
        """
        with self._lock:
            if self.lost:
                raise GuardianLost(self.lost)
            try:
                descriptors = [] if attached is None else [attached]
                socket.send_fds(self._socket, [encode_request(request)], descriptors)
                message = self._socket.recv(MAX_MESSAGE)
            except OSError as error:
                raise self._give_up(f"the guardian does not answer ({error.strerror or error})") from None
            if not message:
                raise self._give_up("the guardian has ended")
            return parse_answer(message)

    def demand(self, request: Request) -> Answer:
        """Ask and raise FwtopError when the guardian refuses."""
        return _agreed(self.ask(request))

    def demand_for_rule(self, request: Plan | Apply, rule: Rule) -> Answer:
        """Ask for a rule, however long its list of sources is; raises FwtopError when refused."""
        whole, attached = detach_sources(request, rule)
        try:
            return _agreed(self.ask(whole, attached))
        finally:
            if attached is not None:
                os.close(attached)

    def close(self) -> None:
        """Hang up: the guardian takes unconfirmed rules back."""
        self._socket.close()

    def _give_up(self, why: str) -> GuardianLost:
        # Not one late answer may be taken for that of the next request: this line is over.
        self.lost = why
        self._socket.close()
        return GuardianLost(why)


def _agreed(answer: Answer) -> Answer:
    if not answer.ok:
        raise FwtopError(answer.error, answer.code or 1)
    return answer
