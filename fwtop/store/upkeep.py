"""Putting sessions in order: crashed ones are merged, damaged ones set aside, gaps before this one told."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event, EventKind, SessionInfo
from fwtop.render.numbers import duration
from fwtop.store.database import check_pages, connect
from fwtop.store.directory import DAMAGED, is_running, lock_session, session_paths, unlock_session
from fwtop.store.reader import session_info
from fwtop.store.rows import FORMAT, VERSION


def put_in_order(directory: Path) -> list[str]:
    """Tend to all sessions that aren't running; return a line about each that was set aside.

    What ended cleanly in today's format isn't touched, so each file is read once; locks left behind go.
    """
    try:
        return [line for path in session_paths(directory) if (line := _tend(path))]
    except FwtopError:
        return []  # recording says so


def set_aside(path: Path, reason: object) -> str:
    """Rename a damaged database with what belongs to it, and return a line that says so."""
    moved = Path(f"{path}{DAMAGED}")
    with suppress(OSError):
        for suffix in ("", "-wal"):
            source = Path(f"{path}{suffix}")
            if source.exists():
                os.replace(source, f"{path}{suffix}{DAMAGED}")
        Path(f"{path}-shm").unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
    why = safe_text(reason, limit=60)
    return f"{safe_text(path.name)} is damaged ({why}); it was renamed to {safe_text(moved.name)}"


def _tend(path: Path) -> str:
    left_locked = path.with_suffix(".lock").exists()
    if is_running(path) or not (left_locked or _needs_care(path)):
        return ""
    try:
        lock = lock_session(path)
    except OSError:
        return ""  # another process was faster
    try:
        if _needs_care(path):
            _merge(path)
    except sqlite3.OperationalError:
        return ""  # in use, or no space left: next time
    except sqlite3.DatabaseError as error:
        return set_aside(path, error)
    finally:
        unlock_session(path, lock)
    return ""


def _needs_care(path: Path) -> bool:
    if any(os.path.exists(f"{path}{suffix}") for suffix in ("-wal", "-shm")):
        return True
    try:
        with open(path, "rb") as file:  # not running: nobody holds POSIX locks that closing would drop
            header = file.read(100)
    except OSError:
        return False
    return len(header) < 100 or int.from_bytes(header[60:64], "big") != VERSION  # user_version


def _merge(path: Path) -> None:
    """Check a session, and merge its WAL into the file; raises sqlite3.Error."""
    with closing(connect(path, timeout=1.0)) as database:
        FORMAT.check(database)
        check_pages(database)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode=DELETE")


_LOOKED_AT = 8  # newest sessions: others may be of other interfaces or namespaces
_LONGEST_SECONDS = 7 * 86_400.0  # a longer gap says nothing of this recording


def interruption(
    before: Sequence[Path], began: float, interfaces: tuple[str, ...], netns: str | None
) -> Event | None:
    """Return the event that ends a gap in what was recorded of these interfaces, None if there is none.

    A gap follows a session that did not end cleanly: its process was killed, or the machine stopped. `before`
    are the sessions that were there when this recording began (Unix seconds), the oldest first: its own may
    say an earlier time, that of its first packets. To be called before old sessions are put in order, which
    locks them as if they were running.
    """
    for path in reversed(before[-_LOOKED_AT:]):
        with suppress(FwtopError):
            info = session_info(path)
            if (info.interfaces, info.netns) == (interfaces, netns):
                return _told(info, began)
    return None


def _told(info: SessionInfo, began: float) -> Event | None:
    gap = began - info.ended
    if info.state != "crashed" or not 0 < gap < _LONGEST_SECONDS:
        return None
    text = (
        f"nothing was recorded in the {duration(gap)} before this session: "
        f"what recorded {info.id} was killed, or the machine stopped"
    )
    return Event(began, EventKind.STORING_RESUMED, "recording", text)
