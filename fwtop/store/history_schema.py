"""The history database: its tables and views, how it is opened, and how it stays within its size."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from fwtop.store.connection import check_format, connect, make_tables, used_bytes
from fwtop.store.schema import check_pages, for_appending
from fwtop.store.upkeep import set_aside

FILE_NAME = "history.db"
APPLICATION_ID = 0x66777468  # "fwth"
VERSION = 1
MAX_BYTES = 32 << 20
MINUTE, HOUR, DAY = 60, 3_600, 86_400
KEPT = {MINUTE: 26 * HOUR, HOUR: 32 * DAY, DAY: 400 * DAY}  # seconds, by span
_LEAST = {MINUTE: 2 * HOUR, HOUR: 2 * DAY, DAY: 2 * DAY}  # roll-ups of unfinished spans need this much
_MOST_SCOPES = 16
_MAX_PRESSURE = 10  # steps, each of which halves what is kept

_TABLES = """
CREATE TABLE scope(id INTEGER PRIMARY KEY, netns TEXT NOT NULL, interfaces TEXT NOT NULL,
  note TEXT NOT NULL DEFAULT '', seen REAL NOT NULL DEFAULT 0, UNIQUE(netns, interfaces));
CREATE TABLE bucket(scope INTEGER, span INTEGER, at INTEGER, seconds REAL, arrived REAL, mine REAL,
  other REAL, kernel REAL, accepted REAL, bits REAL, peak_pps REAL,
  PRIMARY KEY(scope, span, at)) WITHOUT ROWID;
CREATE TABLE name(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, label TEXT NOT NULL,
  UNIQUE(kind, key));
CREATE TABLE part(scope INTEGER, span INTEGER, at INTEGER, name INTEGER, packets INTEGER, dropped INTEGER,
  PRIMARY KEY(scope, span, at, name)) WITHOUT ROWID;
CREATE TABLE pending(writer TEXT PRIMARY KEY, scope INTEGER, at INTEGER, data BLOB) WITHOUT ROWID;
CREATE VIEW traffic AS SELECT
  datetime(at, 'unixepoch') AS time, span, netns, interfaces, seconds AS observed_seconds,
  arrived / seconds AS arrived_pps, mine / seconds AS mine_pps, other / seconds AS other_pps,
  kernel / seconds AS kernel_pps, accepted / seconds AS accepted_pps, bits / seconds / 1e6 AS mbit_s,
  peak_pps, at FROM bucket JOIN scope ON scope.id = bucket.scope WHERE seconds > 0 ORDER BY at;
CREATE VIEW parts AS SELECT
  datetime(part.at, 'unixepoch') AS time, part.span, netns, interfaces, kind, key, label,
  packets / seconds AS arrived_pps, dropped / seconds AS dropped_pps, part.at
  FROM part JOIN name ON name.id = part.name JOIN bucket USING (scope, span, at)
  JOIN scope ON scope.id = part.scope WHERE seconds > 0 ORDER BY part.at;
"""


def open_for_writing(path: Path, max_bytes: int = MAX_BYTES) -> tuple[sqlite3.Connection, str]:
    """Open or create the history, and check all pages; a damaged one is set aside first.

    Returns the database, and a line about what was set aside. Raises OSError or sqlite3.Error.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _opened(path, max_bytes), ""
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        line = set_aside(path, error)
        return _opened(path, max_bytes), line


def _opened(path: Path, max_bytes: int) -> sqlite3.Connection:
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
    if not path.exists():
        os.close(os.open(path, flags, 0o600))
    database = connect(path, timeout=0.5)
    try:
        for_appending(database, max_bytes)
        if int(database.execute("PRAGMA schema_version").fetchone()[0]) == 0:
            make_tables(database, _TABLES, APPLICATION_ID, VERSION)
        check_format(database, APPLICATION_ID, VERSION)
        check_pages(database)
    except BaseException:
        database.close()
        raise
    return database


def prune(database: sqlite3.Connection, now: float, max_bytes: int = MAX_BYTES) -> None:
    """Delete what is too old; near the size limit, more and more of the oldest."""
    # Those of the host go last: labs come and go in namespaces.
    old = "SELECT id FROM scope WHERE id NOT IN "
    old += "(SELECT id FROM scope ORDER BY netns <> '', seen DESC LIMIT ?)"
    for (scope,) in database.execute(old, (_MOST_SCOPES,)).fetchall():
        for table in ("bucket", "part", "pending"):
            database.execute(f"DELETE FROM {table} WHERE scope = ?", (scope,))  # noqa: S608
        database.execute("DELETE FROM scope WHERE id = ?", (scope,))
    for pressure in range(_MAX_PRESSURE):
        _forget(database, now, pressure)
        if used_bytes(database) <= max_bytes * 3 // 4:
            return


def _forget(database: sqlite3.Connection, now: float, pressure: int) -> None:
    scopes = [row[0] for row in database.execute("SELECT id FROM scope").fetchall()]
    for span, kept in KEPT.items():
        before = now - max(kept >> pressure, _LEAST[span])
        for scope in scopes:
            for table in ("bucket", "part"):
                database.execute(
                    f"DELETE FROM {table} WHERE scope = ? AND span = ? AND at < ?",  # noqa: S608
                    (scope, span, before),
                )
    database.execute("DELETE FROM name WHERE id NOT IN (SELECT name FROM part)")
