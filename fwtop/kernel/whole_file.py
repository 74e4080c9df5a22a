"""Files that are written whole: until all is on disk, what was there before stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: Path, how: str = "w", permissions: int = 0o644) -> Iterator[IO[Any]]:
    """Yield a file that takes the place of `path` in the end; raises OSError, and leaves no trace then."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open(how, encoding=None if "b" in how else "utf-8") as file:
            os.fchmod(file.fileno(), permissions)
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_directory(path.parent)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk; raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
