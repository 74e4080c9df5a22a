"""Child processes of the guardian: how they start, how they answer, and which the OOM killer takes first."""

from __future__ import annotations

import array
import contextlib
import socket
import subprocess
import syslog
from collections.abc import Sequence
from pathlib import Path

from fwtop.kernel.descriptors import close_all
from fwtop.kernel.programs import ENVIRONMENT, module_argv
from fwtop.model.messages import MAX_MESSAGE, Answer, ProtocolError, parse_answer

_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; needs CAP_NET_ADMIN
_MAX_DESCRIPTORS = 253  # in a message: SCM_MAX_FD (include/net/scm.h)
_initial_oom_score: int | None = None  # this process's, before `set_oom_score`


def start(
    module: str, *arguments: str, descriptors: Sequence[int], stderr: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a module of fwtop that inherits only these descriptors; raises OSError."""
    process = subprocess.Popen(
        module_argv(module, *arguments),
        pass_fds=descriptors,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
    if _initial_oom_score is not None:
        _write_oom_score(str(process.pid), _initial_oom_score)
    return process


def start_with_socket(
    module: str, *arguments: str, stderr: int = subprocess.DEVNULL
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a module with one end of a socket pair; its first argument is the descriptor. Raises OSError."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            descriptor = theirs.fileno()
            child = start(module, str(descriptor), *arguments, descriptors=[descriptor], stderr=stderr)
            return child, mine
        except OSError:
            mine.close()
            raise


class LastClosers:
    """Closes connections so that a process closes them last: what is in one can make that take forever."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []

    def close(self, connection: socket.socket) -> None:
        """Close a connection; a process that holds it, too, ends after that."""
        self._children = [child for child in self._children if child.poll() is None]
        quiet = subprocess.DEVNULL
        child = None
        with contextlib.suppress(OSError):
            child = subprocess.Popen(
                ["/bin/cat"],
                stdin=subprocess.PIPE,
                stdout=quiet,
                stderr=quiet,
                pass_fds=[connection.fileno()],
                env=ENVIRONMENT,
            )
            self._children.append(child)
        connection.close()
        if child is not None and child.stdin is not None:
            child.stdin.close()


def receive(sock: socket.socket) -> tuple[Answer, list[int]]:
    """Return a child's answer and its descriptors, which the caller then owns.

    Raises OSError, and ProtocolError if the child ended without an answer, or it is truncated or malformed.
    """
    room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
    try:
        message, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # told once, before what it had answered, where it ended without reading all
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
        close_all(descriptors)
        raise


def ending(process: subprocess.Popen[bytes], patience: float = 1.0) -> str:
    """Say how a child ended, "" if it goes on: its socket closes a moment before it can be collected."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(patience)
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return ""


def enlarge(sock: socket.socket) -> None:
    """Let a socket carry messages of MAX_MESSAGE bytes: five times the system's default limit."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * MAX_MESSAGE)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_MESSAGE)


def set_oom_score(score: int) -> None:
    """Set this process's oom_score_adj (proc(5)); never fails.

    Children that `start` starts get the former score back: they can be restarted and may need much memory.
    Other programs are short-lived and inherit the new one.
    """
    global _initial_oom_score  # noqa: PLW0603 - it is the process's
    with contextlib.suppress(OSError, ValueError):
        _initial_oom_score = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))
    _write_oom_score("self", score)


def _write_oom_score(process: str, score: int) -> None:
    """Write oom_score_adj; a lower score than the initial one needs CAP_SYS_RESOURCE."""
    try:
        Path(f"/proc/{process}/oom_score_adj").write_text(str(score), encoding="ascii")
    except PermissionError:
        syslog.syslog(syslog.LOG_NOTICE, f"no CAP_SYS_RESOURCE: oom_score_adj can't be {score}")
    except OSError:
        return  # the process has ended
