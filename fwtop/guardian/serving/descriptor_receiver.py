"""Receives the descriptors that clients send, in threads whose table of descriptors is their own.

To close a descriptor can take forever: that of a FUSE file waits for its server, and no signal ends the wait.
In the guardian's own table such a descriptor would be inherited by each program that it starts, and closed by
that before its first instruction; and a guardian killed meanwhile would keep its locks. So only memory files
get into that table. All else stays with the thread that received it, and hangs nobody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections import Counter

from msgspec import Struct

from fwtop.kernel.children import LastClosers, enlarge
from fwtop.model.messages import MAX_MESSAGE

MAX_OF_ONE = 4  # threads of one user's programs, or of one of root's processes
_MAX_THREADS = 32
_MAX_OF_OTHERS = 16  # of them for programs that are not root's
_IDLE_SECONDS = 1.0  # after which a thread ends
_MAX_DESCRIPTORS = 253  # of a message: SCM_MAX_FD (include/net/scm.h)
_CLOSE_RANGE_UNSHARE = 1 << 1  # linux/close_range.h
_LAST = (1 << 32) - 1
_CREDENTIALS = socket.CMSG_SPACE(struct.calcsize("iII"))  # one struct ucred (linux/socket.h), no more
_RECEIVE, _CLOSE, _DONE = b"r", b"c", b"d"
_HEAD = struct.Struct("<cQ??")  # what, its number; the message was too long, brought more than one
_libc = ctypes.CDLL(None, use_errno=True)


class Received(Struct, frozen=True):
    """A message that brought descriptors: with its memory file, if it brought one and nothing else."""

    number: int  # of the task
    message: bytes
    memory_file: int | None
    too_long: bool
    many: bool


class DescriptorReceiver:
    """The threads, as the event loop sees them; `fileno` is readable when `collect` has something to do."""

    def __init__(self) -> None:
        self._mine, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        enlarge(self._mine)
        enlarge(self._theirs)
        self._mine.setblocking(False)
        self._theirs.settimeout(_IDLE_SECONDS)
        self._lock = threading.Lock()
        self._threads = 0
        self._tasks: dict[int, tuple[str, int]] = {}  # not finished → whose
        self._last = 0
        self._closers = LastClosers()

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._mine.fileno()

    def receive(self, connection: socket.socket, whose: tuple[str, int]) -> int:
        """Begin to receive a connection's next message; returns the task's number, 0 if there is no room.

        `whose` names who sent it: one sender's stuck descriptors keep nobody else away.
        """
        return self._begin(_RECEIVE, connection, whose)

    def close(self, connection: socket.socket, whose: tuple[str, int]) -> None:
        """Close a connection with what it still carries, without waiting; its client notices at once."""
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        if _carries_descriptors(connection) and not self._begin(_CLOSE, connection, whose):
            self._closers.close(connection)  # as no thread is free
        connection.close()

    def collect(self) -> list[Received]:
        """Return what was received since the last call; its memory files are the caller's."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data, files, _, _ = socket.recv_fds(
                    self._mine, _HEAD.size + MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
                )
                what, number, too_long, many = _HEAD.unpack_from(data)
                if what == _DONE:
                    self._tasks.pop(number, None)
                else:
                    memory_file = files[0] if files else None
                    found.append(Received(number, data[_HEAD.size :], memory_file, too_long, many))
        return found

    def _begin(self, what: bytes, connection: socket.socket, whose: tuple[str, int]) -> int:
        """Hand a copy of a connection to a thread; returns the task's number, 0 if there is no room."""
        of = Counter(self._tasks.values())
        others = sum(count for (kind, _), count in of.items() if kind == "user")
        if of[whose] >= MAX_OF_ONE or (whose[0] == "user" and others >= _MAX_OF_OTHERS):
            return 0
        if len(self._tasks) >= _MAX_THREADS:
            return 0
        self._last += 1
        try:
            socket.send_fds(self._mine, [_HEAD.pack(what, self._last, False, False)], [connection.fileno()])
        except OSError:
            return 0
        self._tasks[self._last] = whose
        with self._lock:
            if self._threads < len(self._tasks):
                self._threads += 1
                threading.Thread(target=self._work, name="fwtop-receiver", daemon=True).start()
        return self._last

    def _work(self) -> None:
        """Serve tasks with a table of this thread's own, which holds nothing but the way to the loop."""
        _keep_only(self._theirs.fileno())
        while True:
            try:
                head, files, _, _ = socket.recv_fds(self._theirs, _HEAD.size, 1, socket.MSG_CMSG_CLOEXEC)
            except TimeoutError:
                with self._lock:
                    if self._threads > len(self._tasks):
                        self._threads -= 1
                        return
                continue
            what, number, _, _ = _HEAD.unpack(head)
            with socket.socket(fileno=files[0]) as connection:
                foreign = self._pass_on(number, connection) if what == _RECEIVE else []
                if what == _CLOSE:
                    _drain(connection)
            for descriptor in foreign:
                _close(descriptor)
            self._tell(_HEAD.pack(_DONE, number, False, False), [])

    def _pass_on(self, number: int, connection: socket.socket) -> list[int]:
        """Receive a message and pass it on; returns the descriptors that stay here."""
        try:
            message, files, flags, _ = socket.recv_fds(
                connection, MAX_MESSAGE, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            message, files, flags = b"", [], 0
        many = bool(flags & socket.MSG_CTRUNC) or len(files) > 1
        passed = [file for file in files if not many and is_memory_file(file)]
        head = _HEAD.pack(_RECEIVE, number, bool(flags & socket.MSG_TRUNC), many)
        self._tell(head + message, passed)
        return files

    def _tell(self, data: bytes, files: list[int]) -> None:
        while True:
            with contextlib.suppress(TimeoutError):  # the loop is busy
                socket.send_fds(self._theirs, [data], files)
                return


def is_memory_file(descriptor: int) -> bool:
    """Return whether a descriptor is one of memfd_create(2); asks no file system, which could block."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


def brings_descriptors(connection: socket.socket) -> bool:
    """Return whether the next message of a connection brings descriptors, without receiving them.

    Raises BlockingIOError without a message, and OSError.
    """
    _, _, flags, _ = connection.recvmsg(1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return bool(flags & socket.MSG_CTRUNC)  # there was no room for them


def _carries_descriptors(connection: socket.socket) -> bool:
    """Return whether any message that waits in a connection brings descriptors; drops those before it.

    With SO_PASSCRED each message brings who sent it, so that an empty one can be told from the end.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        while True:
            peeked = connection.recvmsg(1, _CREDENTIALS, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            _, credentials, flags, _ = peeked
            if flags & socket.MSG_CTRUNC or not credentials:
                return bool(credentials)
            connection.recv(1, socket.MSG_DONTWAIT)
    return False


def _keep_only(descriptor: int) -> None:
    """Give this thread a table with one descriptor of the process's; its number stays (close_range(2))."""
    if descriptor:
        _libc.close_range(0, descriptor - 1, _CLOSE_RANGE_UNSHARE)
    _libc.close_range(ctypes.c_uint(descriptor + 1), ctypes.c_uint(_LAST), _CLOSE_RANGE_UNSHARE)


def _drain(connection: socket.socket) -> None:
    """Close what a connection still carries: in its own close it would keep its lingering."""
    with contextlib.suppress(OSError):
        while _carries_descriptors(connection):
            flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            for file in socket.recv_fds(connection, 1, _MAX_DESCRIPTORS, flags)[1]:
                _close(file)


def _close(descriptor: int) -> None:
    try:
        sent = socket.socket(fileno=descriptor)
    except OSError:  # not a socket
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return
    with contextlib.suppress(OSError):
        sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    with contextlib.suppress(OSError):
        sent.close()
