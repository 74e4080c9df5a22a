"""Descriptors kept back for what must not fail where a process has none left, or the whole machine."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})  # this process's limit, the machine's
_LIMIT = 4096  # of open descriptors, where the hard limit allows as many


class Spare:
    """Open files of no use but to be closed when others are needed. Of one thread."""

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
