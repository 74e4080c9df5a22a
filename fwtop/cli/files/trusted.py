"""Open files named on the command line as root without following links planted by other users.

The console's user owns the session directory. A symbolic link in it, or in its place, must not make root read
or write root's own files.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_MAX_LINKS = 40  # as many as the kernel follows (MAXSYMLINKS)
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading if its owner and all links to it are trusted.

    Raises FwtopError if they are not, OSError if it can't be opened.
    """
    directory, name = locate(path)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        found, owner = os.fstat(handle), os.fstat(directory).st_uid
    finally:
        os.close(directory)
    if stat.S_ISREG(found.st_mode) and (_is_trusted(owner) or found.st_uid == owner):
        return open(handle, "rb")
    os.close(handle)
    raise FwtopError(f"{safe_text(path)} is not opened as root: it is no file of its directory's owner")


def locate(path: Path) -> tuple[int, str]:
    """Return a descriptor of a file's directory, for the caller to close, and the file's name in it.

    Follows links owned by root or the caller only: raises FwtopError at any other, OSError if a directory is
    missing.
    """
    waiting = list(reversed(path.absolute().parts[1:]))
    directory = os.open("/", _DIRECTORY)
    links = 0
    try:
        while waiting:
            name = waiting.pop()
            target = _link_target(directory, name, path)
            if target is None:
                if not waiting:
                    return directory, name
                inner = os.open(name, _DIRECTORY, dir_fd=directory)
            else:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                absolute = target.is_absolute()
                waiting += reversed(target.parts[1:] if absolute else target.parts)
                inner = os.open("/", _DIRECTORY) if absolute else os.dup(directory)
            os.close(directory)
            directory = inner
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    except BaseException:
        os.close(directory)
        raise


def in_trusted_hands(directory: int) -> bool:
    """Return whether root or the caller owns a directory, given its descriptor."""
    return _is_trusted(os.fstat(directory).st_uid)


def _link_target(directory: int, name: str, path: Path) -> Path | None:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if not _is_trusted(found.st_uid):
        raise FwtopError(
            f"{safe_text(path)} leads through {safe_text(name)!r}, a link that another user made: root does "
            "not follow it; nothing was opened; name the file itself"
        )
    return Path(os.readlink(name, dir_fd=directory))


def _is_trusted(owner: int) -> bool:
    mine = os.geteuid()
    return mine != 0 or owner == 0
