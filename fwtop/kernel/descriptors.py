"""Descriptors: closed with a block, kept back for need; locks that end with their process; who listens."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close a descriptor when the block ends."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})  # this process's limit, the machine's
_LIMIT = 4096  # of open descriptors, where the hard limit allows as many


class Spare:
    """Open files in reserve, closed to make room when descriptors run out. Not thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self._lent = 0
        self.fill()

    @property
    def whole(self) -> bool:
        """Whether all are there; not while they are lent, or others took what was given back."""
        return len(self._held) == self._count

    def fill(self) -> None:
        """Take back what is missing, as far as there are descriptors."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def give(self) -> bool:
        """Give one up; False if none is left."""
        if not self._held:
            return False
        os.close(self._held.pop())
        return True

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Give all up within the block."""
        self._lent += 1
        while self.give():
            pass
        try:
            yield
        finally:
            self._lent -= 1
            if not self._lent:
                self.fill()


def raise_limit() -> None:
    """Let this process have more descriptors than usual, which its children inherit; never fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT if hard == resource.RLIM_INFINITY else min(_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def locked(path: Path, seconds: float, given_up: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """Hold the lock of a file for the block, which has its descriptor; the file goes with it.

    Waits so long for who holds it, unless that is `given_up`. Raises OSError, BlockingIOError if it is held.
    """
    descriptor = _locked(path, seconds, given_up)
    try:
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, seconds: float, given_up: Callable[[], bool]) -> int:
    end = time.monotonic() + seconds
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass  # its last holder removed it when it ended
        except BlockingIOError:
            if given_up() or time.monotonic() > end:
                os.close(descriptor)
                raise
            time.sleep(0.02)  # flock(2) has no time limit of its own
        os.close(descriptor)


def is_served(path: Path, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> bool:
    """Tell whether somebody listens at a socket, systemd perhaps."""
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(str(path))
        except BlockingIOError:
            return True  # so many wait there
        except OSError:
            return False
        return True


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file; not where there is no file to be read."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
