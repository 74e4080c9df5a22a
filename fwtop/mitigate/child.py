"""Children of the guardian that carry bcc for a moment: how they start, and how their answers are read."""

from __future__ import annotations

import array
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence

from fwtop.mitigate.run import ENVIRONMENT
from fwtop.model.modules import module_argv
from fwtop.model.protocol import MAX_MESSAGE, Answer, ProtocolError, parse_answer

_MAX_DESCRIPTORS = 253  # of a message: SCM_MAX_FD (include/net/scm.h)


def start(module: str, *arguments: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a module of fwtop with these descriptors and nothing else of ours; raises OSError."""
    return subprocess.Popen(
        module_argv(module, *arguments),
        pass_fds=descriptors,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def start_asked(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a module that is asked through a socket, whose descriptor it is told; raises OSError."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            return start(module, str(theirs.fileno()), descriptors=[theirs.fileno()]), mine
        except OSError:
            mine.close()
            raise


def receive(sock: socket.socket) -> tuple[Answer, list[int]]:
    """Return a child's answer and its descriptors, the caller's from then on.

    Raises OSError, and ProtocolError when it ended without an answer, or this one is cut or none.
    """
    room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
    message, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    try:
        if not message:
            raise ProtocolError("the loader ended without an answer")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ProtocolError("the loader's answer is too long")
        return parse_answer(message), descriptors.tolist()
    except ProtocolError:
        close(descriptors)
        raise


def close(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
