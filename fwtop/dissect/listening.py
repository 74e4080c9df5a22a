"""The process that reads what is heard at ports of bridges and routers, and tells the guardian who talks.

The guardian opens the sockets, which takes root, and passes each packet on unread. This process gives root
away and confines itself before it looks at one; of a conversation it tells role, addresses and port only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import OrderedDict

from fwtop.dissect.conversations import Conversations, headers_of
from fwtop.dissect.findings import PORT, encode_finding
from fwtop.dissect.supervisor import dissector_user
from fwtop.model.addresses.roles import Conversation, Role
from fwtop.sandbox.confine import Profile, confine, drop_privileges, limit

_LONGEST_MESSAGE = 4096
_MEMORY_BYTES = 256 << 20
_AGAIN_SECONDS = 10.0  # a conversation that goes on is told again after so long
_REMEMBERED = 4096  # conversations told lately


def main(arguments: list[str]) -> int:
    """Serve the socket whose descriptor is the first argument; the others are ports of SSH daemons."""
    channel = int(arguments[0])
    _confine()
    findings = _FindingsChannel(channel)
    conversations = Conversations(findings.tell, [int(port) for port in arguments[1:]])
    with contextlib.suppress(ConnectionError):  # the guardian has ended
        while message := os.read(channel, _LONGEST_MESSAGE):
            (port,), packet = PORT.unpack_from(message), message[PORT.size :]
            if not packet:
                conversations.forget(port)
            elif (heard := headers_of(packet)) is not None:
                conversations.hear(port, heard, time.monotonic())
    return 0


class _FindingsChannel:
    """Writes findings, each conversation's seldom: it has evidence with every packet."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._told: OrderedDict[tuple[Role, Conversation], float] = OrderedDict()

    def tell(self, role: Role, conversation: Conversation, now: float) -> None:
        key = role, conversation
        if now - self._told.get(key, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        os.write(self._channel, encode_finding(role, conversation))


def _confine() -> None:
    os.chdir("/")
    drop_privileges(dissector_user())
    confine(Profile.DISSECTOR)
    limit(_MEMORY_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
