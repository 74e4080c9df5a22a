"""Files that are written whole: until all is on disk, what was there before stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


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
