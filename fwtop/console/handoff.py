"""What the launcher (root) hands to the console (unprivileged): options, the guardian's socket, observers."""

from __future__ import annotations

import array
import json
import socket
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_DESCRIPTORS = 64
_MAX_MESSAGE = 1 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """How the console was asked to run."""

    mode: str  # tui, snapshot, record, trial
    seconds: float = 5.0
    json: bool = False
    top: int = 50
    slow: bool = False
    readonly: bool = False
    netns: str | None = None
    geoip: str | None = None
    store: bool = True
    ready_fd: int | None = None  # snapshot: write "ready" here once everything counts


@dataclass(frozen=True, slots=True)
class Handoff:
    """The launcher's one message. `watch` is the guardian's answer to Watch, `names` its descriptors."""

    watch: dict[str, Any]
    names: list[str] = field(default_factory=list)
    error: str = ""  # set instead: nothing can be watched, say this and end with `code`
    code: int = 0


def send_handoff(to: socket.socket, handoff: Handoff, descriptors: list[int]) -> None:
    """Send the message with its descriptors: the guardian's socket first, then those of `names`."""
    socket.send_fds(to, [json.dumps(asdict(handoff)).encode()], descriptors)


def receive_handoff(source: socket.socket) -> tuple[Handoff, list[int]]:
    """Wait for the launcher's message; raises EOFError when the launcher ended without one."""
    message, ancillary, flags, _ = source.recvmsg(
        _MAX_MESSAGE, socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    )
    if not message or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise EOFError("the launcher ended early")
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return Handoff(**json.loads(message)), list(received)
