"""How the store opens its databases: SQLite may make no file but those beside the database.

The sandbox refuses files anywhere else. SQLite asks access(2) for a place for its temporary files, which
Landlock does not answer, so it picks /var/tmp and fails there with "unable to open database file": in a
statement that needs more than 64 KiB to be rolled back, or in a large sort.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

_MAX_VALUE_BYTES = 64 << 20


def connect(path: Path, *, timeout: float, mode: str = "rw") -> sqlite3.Connection:
    """Open a database, `mode` as in SQLite's URIs: "ro", "rw", or "rwc", which creates it.

    Transactions are begun explicitly. May be used from any thread, one call at a time. Raises sqlite3.Error.
    """
    database = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    database.execute("PRAGMA trusted_schema=OFF")  # the process that wrote the file parses untrusted packets
    database.execute("PRAGMA temp_store=MEMORY")
    # Debian's SQLite overwrites what is deleted with zeros: as much again is written, and kept for rollback.
    database.execute("PRAGMA secure_delete=OFF")
    return database


def make_tables(database: sqlite3.Connection, tables: str, application_id: int, version: int) -> None:
    """Make the tables of an empty database, and write down whose they are and in which format."""
    database.execute(f"PRAGMA application_id={application_id}")
    database.executescript(f"BEGIN IMMEDIATE;{tables}PRAGMA user_version={version};COMMIT;")


def check_format(database: sqlite3.Connection, application_id: int, version: int) -> None:
    """Raise sqlite3.DatabaseError unless these are those tables, in this format."""
    if database.execute("PRAGMA application_id").fetchone()[0] != application_id:
        raise sqlite3.DatabaseError("not written by fwtop")
    found = database.execute("PRAGMA user_version").fetchone()[0]
    if found != version:
        raise sqlite3.DatabaseError(f"written in format {found}, this fwtop reads {version}")


def is_damage(error: Exception) -> bool:
    """Whether SQLite says that the file itself is damaged or no database, not that it can't be used now."""
    return type(error) is sqlite3.DatabaseError


def identity(path: Path) -> tuple[int, int]:
    """Return device and inode of a file; raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino


def is_gone(path: Path, known: tuple[int, int] | None) -> bool:
    """Whether a file was deleted or replaced: SQLite writes on into one that nobody can read any more."""
    try:
        return identity(path) != known
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # not to be found out, and what is open can still be written


def used_bytes(database: sqlite3.Connection) -> int:
    """Return the size of what a database holds, in bytes."""
    pages, free, size = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commit at the end of the block, roll back after an error in it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
