"""Files of operators and of fwtop: read with care, and written whole.

Anything else than a regular file is refused, and what was there before stays until all is on disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

_MOST_BYTES = 1 << 20  # the guardian's memory is locked, and a table takes many times its text


class ConfigText(Struct, frozen=True):
    """A file as it was read: its text, or why there is none."""

    path: str
    text: str
    wrong: str = ""


def read_regular(
    path: Path, most_bytes: int = -1, *, owners: Collection[int] | None = None, follow: bool = True
) -> bytes:
    """Return a file's content; raises OSError, also where it is not of `owners`, or others may write it.

    Anything else than a regular file is refused: a FIFO would be waited for, a device may have no end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if owners is not None and about.st_uid not in owners:
            raise OSError(errno.EPERM, f"it belongs to user {about.st_uid}")
        others = stat.S_IWOTH | (0 if about.st_uid else stat.S_IWGRP)
        if owners is not None and about.st_mode & others:
            raise OSError(errno.EPERM, "others may write it: chmod go-w")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1 if most_bytes >= 0 else -1)
    finally:
        os.close(descriptor)
    if 0 <= most_bytes < len(content):
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes")
    return content


def read_regular_text(path: Path) -> ConfigText | None:
    """Read a file; None if there is none."""
    try:
        return ConfigText(str(path), read_regular(path, _MOST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return ConfigText(str(path), "", "it is not UTF-8")
    except OSError as error:
        return ConfigText(str(path), "", error.strerror or str(error))


@contextmanager
def replacing(
    path: Path, how: str = "w", permissions: int = 0o644, *, directory: int | None = None
) -> Iterator[IO[Any]]:
    """Yield a file that takes the place of `path` in the end; raises OSError, and leaves no trace then.

    Until then it has a name that nobody can guess, as the directory may be another user's. A relative path is
    within `directory`, given by its descriptor.
    """
    beside = path.parent / f".fwtop-{os.urandom(8).hex()}"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(beside, flags, 0o600, dir_fd=directory)
    try:
        with open(handle, how, encoding=None if "b" in how else "utf-8") as file:
            yield file
            file.flush()
            os.fchmod(handle, permissions)
            os.fsync(handle)
        os.replace(beside, path, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=directory)
        raise
    if directory is None:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk; raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
