"""The journal's database file: opened, checked, and set aside when it is damaged.

What can't be written is copied into memory: rules that it knows can still be ended.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS rules (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot TEXT NOT NULL, netns INTEGER NOT NULL, variant TEXT NOT NULL,
  rule TEXT NOT NULL, sources BLOB NOT NULL, state TEXT NOT NULL,
  expires REAL NOT NULL, confirm_by REAL,
  packets INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
  ended REAL, note TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS rules_of ON rules (boot, netns, state);
CREATE TABLE IF NOT EXISTS lists (rule INTEGER PRIMARY KEY, sources BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS before (
  boot TEXT NOT NULL, netns INTEGER NOT NULL, family INTEGER NOT NULL, chains TEXT,
  PRIMARY KEY (boot, netns, family));
CREATE TABLE IF NOT EXISTS settings (
  boot TEXT NOT NULL, netns INTEGER NOT NULL, rule INTEGER NOT NULL, name TEXT NOT NULL,
  old INTEGER NOT NULL, new INTEGER NOT NULL, done INTEGER NOT NULL,
  PRIMARY KEY (boot, netns, rule, name));
"""
_TABLES = {
    "rules": (
        *("id", "boot", "netns", "variant", "rule", "sources", "state", "expires", "confirm_by"),
        *("packets", "bytes", "ended", "note"),
    ),
    "lists": ("rule", "sources"),
    "before": ("boot", "netns", "family", "chains"),
    "settings": ("boot", "netns", "rule", "name", "old", "new", "done"),
}
_BESIDE = ("-journal", "-wal", "-shm")  # files that SQLite keeps next to a database
_PRIMARY_CODE = 0xFF  # of an extended result code: sqlite.org/rescode.html


class NewerJournalError(Exception):
    """The file was written by a newer fwtop, whose rows this one may not understand."""


def connect(path: Path | None) -> sqlite3.Connection:
    """Open or make the database (0600), or one in memory; an up-to-date file is not written to.

    Raises OSError, sqlite3.Error (see `is_damage`) and NewerJournalError.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    db = sqlite3.connect(path or ":memory:", timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA synchronous=FULL")
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise NewerJournalError
        if version < SCHEMA_VERSION:
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        _check(db)
    except BaseException:
        db.close()
        raise
    return db


def readable_copy(path: Path) -> sqlite3.Connection:
    """Return a database in memory with what can be read of a file that can't be written."""
    db = connect(None)
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_read_only(path)) as source:
        copy_rows(source, db)
    return db


def copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, where: str = "1") -> None:
    """Copy rows, `where` they meet a condition, over those with the same key; skip what can't be read."""
    for table, columns in _TABLES.items():
        marks = ", ".join("?" * len(columns))
        with contextlib.suppress(sqlite3.Error):
            rows = source.execute(f"SELECT * FROM {table} WHERE {where if table != 'lists' else '1'}")  # noqa: S608
            for row in rows:
                with contextlib.suppress(sqlite3.Error):
                    target.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)  # noqa: S608


def set_aside(path: Path) -> Path:
    """Rename a damaged database, and what SQLite keeps next to it; returns the new name. Raises OSError."""
    stem = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    aside, number = stem, 1
    while aside.exists():
        number += 1
        aside = stem.with_name(f"{stem.name}-{number}")
    for suffix in _BESIDE:  # first: they must never be taken for those of the new file
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    path.rename(aside)
    return aside


def salvage(aside: Path, target: sqlite3.Connection) -> None:
    """Copy what can still be read of a damaged file."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_read_only(aside)) as source:
        copy_rows(source, target)


def number_from(db: sqlite3.Connection, taken: Iterable[int]) -> None:
    """Have new rules numbered above those whose numbers are taken in the kernel."""
    most = max(taken, default=0)
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name='rules'").fetchone()
    if row is None:
        db.execute("INSERT INTO sqlite_sequence VALUES ('rules', ?)", (most,))
    elif row[0] < most:
        db.execute("UPDATE sqlite_sequence SET seq=? WHERE name='rules'", (most,))


def is_damage(error: Exception) -> bool:
    """Return whether an error is about the file's content; a full disk or a lock is not."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
    return code & _PRIMARY_CODE in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _check(db: sqlite3.Connection) -> None:
    """Read the whole file; raises sqlite3.DatabaseError when it is not as it was written."""
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    for table, columns in _TABLES.items():
        found = tuple(row[1] for row in db.execute(f"PRAGMA table_info({table})"))
        if found != columns:
            raise sqlite3.DatabaseError(f"table {table} has other columns")


def _read_only(path: Path) -> sqlite3.Connection:
    """Open without writing anything, whatever a crash left beside the file."""
    return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, isolation_level=None)
