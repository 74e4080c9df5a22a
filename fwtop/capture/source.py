"""Where the bytes of a capture come from: a file, or a stream, which may keep one waiting."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable
from os import PathLike

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

STDIN = "-"
_NOTHING = "nothing was read"
_WAIT_MS = 200  # between two looks whether to go on waiting
_BLOCK_BYTES = 512  # of st_blocks
_REFUSED = {
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a block device",
}


class CaptureSource:
    """An open capture, unread. One thread reads; another may end it."""

    def __init__(self, descriptor: int, name: str) -> None:
        found = os.fstat(descriptor)
        self.name = name  # safe to print
        self.position = 0  # bytes read
        self.is_stream = not stat.S_ISREG(found.st_mode)
        self.size = 0 if self.is_stream else found.st_size
        # What a byte takes on the disk: less than one in a file with holes, which is as cheap to make as gzip
        self.density = min(1.0, found.st_blocks * _BLOCK_BYTES / self.size) if self.size else 1.0
        self.while_waiting: Callable[[], None] = lambda: None
        self._descriptor = descriptor
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes; none at the end. Raises OSError."""
        if self.is_stream and not self._wait():
            return b""
        data = os.read(self._descriptor, size)
        self.position += len(data)
        return data

    def _wait(self) -> bool:
        """Wait for data, or the writer's end; False once reading was ended."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while not self._ended:
            if poll.poll(_WAIT_MS):
                return True
            self.while_waiting()
        return False

    def end(self) -> None:
        """Have what is read of a stream end here."""
        self._ended = True

    def close(self) -> None:
        """Close it; a thread that still waits for a stream stops."""
        self._ended = True
        if self._descriptor > 2:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> CaptureSource:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        if self._descriptor >= 0:
            self.close()


def open_source(path: str | PathLike[str]) -> CaptureSource:
    """Open a file, a named pipe, or `-` for standard input, without waiting; raises FwtopError."""
    if os.fspath(path) == STDIN:
        if sys.stdin.isatty():
            raise FwtopError(f"standard input is a terminal; {_NOTHING}; try: tcpdump -w - | fwtop read -")
        descriptor, name = sys.stdin.fileno(), "standard input"
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISSOCK(mode):  # what sshd may give
            _check_kind(mode, name)
        return CaptureSource(descriptor, name)
    name = safe_text(path)
    try:
        _check_kind(os.stat(path).st_mode, name)  # to open a device may do something
        # A pipe without a writer is waited for when it is read
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise FwtopError(f"{name}: {error.strerror}; {_NOTHING}") from None
    return CaptureSource(descriptor, name)


def _check_kind(mode: int, name: str) -> None:
    """Raise FwtopError for what can't hold a capture."""
    what = _REFUSED.get(stat.S_IFMT(mode))
    if what is not None:
        raise FwtopError(f"{name} is {what}, not a capture; {_NOTHING}; record one with: tcpdump -w FILE")
