"""The directory of sessions: their names, locks, the limit on their size, and files written beside them."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from fwtop.kernel.descriptors import is_held
from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY, exports_directory
from fwtop.model.text import safe_text

SESSION_DIRECTORY = STATE_DIRECTORY / "sessions"
DEFAULT_MAX_BYTES = 256 << 20  # of all sessions and the files exported beside them
DAMAGED = ".damaged"  # appended to the names of files set aside
_REPORTS = (".html", ".md", ".json", ".csv", ".pcap")


def session_id(started: float, interfaces: Iterable[str]) -> str:
    """Return a session's name: its start and interfaces; sorts by time and is safe in shells and paths."""
    moment = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    watched = re.sub(r"[^A-Za-z0-9._+-]", "_", "+".join(interfaces))[:40]
    return f"{moment}-{watched or 'all'}"


def session_paths(directory: Path) -> list[Path]:
    """List the databases, oldest first; raises FwtopError if the directory can't be read."""
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
    """Return the database of a session by id, unique prefix of an id, or path; None: the latest.

    Raises FwtopError if none or several match.
    """
    if name is not None and (os.sep in name or name.endswith(".db")):
        path = Path(name)
        if not path.is_file():
            raise FwtopError(f"there is no session file {safe_text(name)}; 'fwtop sessions' lists them")
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
    raise FwtopError(f"there is no session {shown!r}; 'fwtop sessions' lists them", 2)


def lock_session(path: Path) -> int:
    """Lock a session as running while the returned descriptor is open; raises OSError."""
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(path.with_suffix(".lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def new_session(directory: Path, started: float, interfaces: Iterable[str]) -> tuple[Path, int]:
    """Return a path for a session that no other has, and its lock; raises OSError or FwtopError.

    Others may begin in the same second, those of interfaces with the same names elsewhere among them.
    """
    taken = {path.stem for path in session_paths(directory)}
    stem = session_id(started, interfaces)
    for name in (stem, *(f"{stem}-{number}" for number in range(2, 1_000))):
        path = directory / f"{name}.db"
        if name in taken:
            continue
        try:
            lock = lock_session(path)
        except BlockingIOError:
            continue
        if not path.exists():
            return path, lock
        os.close(lock)  # another was faster, and has ended: the lock is in use, or goes with the next session
    raise FwtopError(f"there are too many sessions named {stem} in {directory}")


def unlock_session(path: Path, lock: int) -> None:
    """Remove the lock of a session that has ended, and close it."""
    with suppress(OSError):
        path.with_suffix(".lock").unlink(missing_ok=True)
    os.close(lock)


def is_running(path: Path) -> bool:
    """Whether a process is writing this session."""
    return is_held(path.with_suffix(".lock"))


def size_bytes(path: Path) -> int:
    """Return the disk usage of a session with its WAL and reports, in bytes."""
    total = 0
    for one in (path, Path(f"{path}-wal"), *_reports(path)):
        try:
            total += one.lstat().st_size
        except OSError:
            continue
    return total


def drop_old(directory: Path, max_bytes: int) -> list[Path]:
    """Delete the oldest sessions until the total is at most `max_bytes`, but no running one.

    Reports are deleted with their session; without one, by their age, as are damaged files. Returns the
    deleted paths.
    """
    sessions = session_paths(directory)
    # By time: names start with it, those of exported snapshots after a prefix
    paths = sorted(
        [*sessions, *_loose_reports(directory, sessions)], key=lambda path: path.stem.removeprefix("fwtop-")
    )
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
    """Delete a session with its WAL, lock and reports, or a single report; raises OSError."""
    beside = (Path(f"{path}-wal"), Path(f"{path}-shm"), path.with_suffix(".lock"), *_reports(path))
    for one in (path, *beside):
        one.unlink(missing_ok=True)


def _reports(path: Path) -> list[Path]:
    return [path.with_suffix(suffix) for suffix in _REPORTS] if path.suffix == ".db" else []


def _loose_reports(directory: Path, sessions: list[Path]) -> list[Path]:
    """List the reports without a session, and what was set aside."""
    stems = {path.stem for path in sessions}
    try:
        found = [Path(entry.path) for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return [
        path
        for path in found
        if (path.suffix in _REPORTS and path.stem not in stems) or path.suffix == DAMAGED
    ]


_SAME_NAME = 1_000


def write_export(at: float, suffix: str, content: bytes, directories: Iterable[Path] | None = None) -> str:
    """Write into a new file named after a time (Unix seconds) and return its path; never overwrites.

    Raises FwtopError.
    """
    if directories is None:
        with suppress(OSError):
            SESSION_DIRECTORY.mkdir(mode=0o700, exist_ok=True)
        directories = (SESSION_DIRECTORY, exports_directory())
    stem = time.strftime("fwtop-%Y-%m-%dT%H-%M-%S", time.gmtime(at))
    failure = FwtopError("there is no directory to write to")
    for directory in directories:
        try:
            path = _write_new(directory, stem, suffix, content)
        except OSError as error:
            failure = FwtopError(f"nothing was written to {directory}: {error.strerror}")
            continue
        if directory == SESSION_DIRECTORY:
            drop_old(directory, DEFAULT_MAX_BYTES)
        return str(path)
    raise failure


def _write_new(directory: Path, stem: str, suffix: str, content: bytes) -> Path:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    for number in range(1, _SAME_NAME):
        path = directory / f"{stem}{f'-{number}' if number > 1 else ''}.{suffix}"
        try:
            handle = os.open(path, flags, 0o600)
        except FileExistsError:
            continue
        with open(handle, "wb") as file:
            file.write(content)
        return path
    raise FileExistsError(0, "a thousand files of this second")
