"""The directory of sessions: names, which one is running, and what is dropped when it grows too large."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.text import safe_text

SESSION_DIRECTORY = STATE_DIRECTORY / "sessions"
DEFAULT_MAX_BYTES = 256 << 20  # of all sessions together


def session_id(started: float, interfaces: Iterable[str]) -> str:
    """Name a session by its start and what it watched: sorts by time, safe in a shell and as a file."""
    moment = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    watched = re.sub(r"[^A-Za-z0-9._+-]", "_", "+".join(interfaces))[:40]
    return f"{moment}-{watched or 'all'}"


def session_paths(directory: Path) -> list[Path]:
    """List the databases, the oldest first; raises FwtopError where the directory is not ours to read."""
    try:
        found = [Path(entry.path) for entry in os.scandir(directory) if entry.name.endswith(".db")]
    except FileNotFoundError:
        return []
    except PermissionError:
        raise FwtopError(
            f"{directory} may not be read: sessions belong to user fwtop; try the same with sudo", 3
        ) from None
    except OSError as error:
        raise FwtopError(f"{directory} can't be read: {error.strerror}") from None
    return sorted(
        (path for path in found if path.is_file() and not path.is_symlink()), key=lambda path: path.stem
    )


def find_session(name: str | None, directory: Path = SESSION_DIRECTORY) -> Path:
    """Return the database of a session: by its id or the beginning of it, by path, or the last one.

    Raises FwtopError where there is none, or more than one.
    """
    if name is not None and (os.sep in name or name.endswith(".db")):
        path = Path(name)
        if not path.is_file():
            raise FwtopError(
                f"there is no session file {safe_text(name)}; 'fwtop sessions' lists what there is"
            )
        return path
    paths = session_paths(directory)
    if name is None:
        if not paths:
            raise FwtopError(
                f"no session is stored in {directory} yet; 'sudo fwtop' or 'fwtop record' makes one"
            )
        return paths[-1]
    exact = [path for path in paths if path.stem == name]
    fitting = exact or [path for path in paths if path.stem.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    shown = safe_text(name, limit=60)
    if fitting:
        raise FwtopError(f"{len(fitting)} sessions begin with {shown!r}; 'fwtop sessions' lists them", 2)
    raise FwtopError(f"there is no session {shown!r}; 'fwtop sessions' lists what there is", 2)


def hold(path: Path) -> int:
    """Mark a session as running for as long as the returned descriptor is open (the kernel lets go)."""
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(path.with_suffix(".lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def is_running(path: Path) -> bool:
    """Tell whether some process writes this session now."""
    try:
        lock = os.open(path.with_suffix(".lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def size_bytes(path: Path) -> int:
    """Return what a session takes on the disk, with what was not yet folded into it."""
    total = 0
    for suffix in ("", "-wal"):
        try:
            total += os.stat(f"{path}{suffix}").st_size
        except OSError:
            continue
    return total


def drop_old(directory: Path, max_bytes: int) -> list[Path]:
    """Delete the oldest sessions until all together take at most `max_bytes`; never a running one."""
    paths = session_paths(directory)
    sizes = {path: size_bytes(path) for path in paths}
    total, dropped = sum(sizes.values()), []
    for path in paths:
        if total <= max_bytes:
            break
        if is_running(path):
            continue
        try:
            discard(path)
        except OSError:
            continue
        total -= sizes[path]
        dropped.append(path)
    return dropped


def discard(path: Path) -> None:
    """Delete a session with the files beside it; raises OSError."""
    for one in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), path.with_suffix(".lock")):
        one.unlink(missing_ok=True)
