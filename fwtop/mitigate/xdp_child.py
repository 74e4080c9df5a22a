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


def ask(request: dict[str, Any], descriptors: dict[str, int]) -> Loaded:
    """Send one request with descriptors, which stay the caller's; raises FwtopError."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine:
        with theirs:
            child = subprocess.Popen(
                module_argv(_LOADER, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            mine.settimeout(_SECONDS)
            _send(mine, request, descriptors)
            return _receive(mine)
        except (OSError, ProtocolError) as error:
            raise FwtopError(f"the XDP loader did not answer: {error}") from None
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
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
