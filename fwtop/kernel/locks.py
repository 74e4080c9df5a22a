"""Files that a process keeps locked as long as it lives: flock(2) ends with it, whatever ends it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
