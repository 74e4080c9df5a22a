"""Ask the XDP loader: a child with bcc that compiles, swaps in, and ends."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

from fwtop.mitigate.run import ENVIRONMENT, module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_MESSAGE, ProtocolError, parse_answer

_LOADER = "fwtop.collect.xdp_loader"
_SECONDS = 30.0
_MAX_DESCRIPTORS = 64


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loader's answer: where the rules are attached, and the shared maps' descriptors by name."""

    attachments: tuple[dict[str, Any], ...]
    layout: dict[str, int]
    maps: dict[str, int]


class Running:
    """A child with its request; closing it ends it."""

    def __init__(self, request: dict[str, Any], descriptors: dict[str, int]) -> None:
        """Start it; `descriptors` stay the caller's. Raises FwtopError."""
        self._mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._child = subprocess.Popen(
                module_argv(_LOADER, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._mine.settimeout(_SECONDS)
        try:
            _send(self._mine, request, descriptors)
        except OSError as error:
            self.close()
            raise FwtopError(f"the XDP loader could not be asked: {error}") from None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def answer(self) -> Loaded:
        """Wait for the answer; raises FwtopError."""
        try:
            return _receive(self._mine)
        except (OSError, ProtocolError) as error:
            raise FwtopError(f"the XDP loader did not answer: {error}") from None

    def close(self, patience: float = 1.0) -> None:
        """Let it end, or end it."""
        self._mine.close()
        _end(self._child, patience)


def ask(request: dict[str, Any], descriptors: dict[str, int]) -> Loaded:
    """Send one request with descriptors, which stay the caller's; raises FwtopError."""
    child = Running(request, descriptors)
    try:
        return child.answer()
    finally:
        child.close()


def _end(child: subprocess.Popen[bytes], patience: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(patience)
    if child.poll() is None:
        child.kill()
        child.wait()


def _send(sock: socket.socket, request: dict[str, Any], descriptors: dict[str, int]) -> None:
    """The request goes as a memory file: with long lists it would not fit a message."""
    order = os.memfd_create("fwtop-xdp", os.MFD_CLOEXEC)
    try:
        with open(order, "wb", closefd=False) as file:
            file.write(json.dumps(request).encode())
        names = ["request", *descriptors]
        socket.send_fds(sock, [json.dumps({"fds": names}).encode()], [order, *descriptors.values()])
    finally:
        os.close(order)


def _receive(sock: socket.socket) -> Loaded:
    room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
    message, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    try:
        answer = parse_answer(message)
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        maps = dict(zip(answer.data["fds"], received.tolist(), strict=True))
    except (FwtopError, ProtocolError, ValueError):
        for descriptor in received:
            os.close(descriptor)
        raise
    return Loaded(tuple(answer.data["attachments"]), answer.data["layout"], maps)
