"""The tables of a session's database, and how it is opened for reading."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.store.database import Format, check_pages, connect

APPLICATION_ID = 0x66777470  # "fwtp" in the file header, for file(1) and the reader
VERSION = 5

_TABLES = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE snapshot(n INTEGER PRIMARY KEY, at REAL, pinned INTEGER, data BLOB);
CREATE INDEX snapshot_at ON snapshot(at, pinned);
CREATE TABLE tick(n INTEGER PRIMARY KEY, at REAL, span INTEGER NOT NULL DEFAULT 0, seconds REAL,
  pps REAL, bps REAL, dropped_pps REAL, mine_pps REAL, other_pps REAL, kernel_pps REAL, accepted_pps REAL,
  peak_pps REAL, peak_bps REAL, one_in REAL, lost_per_s REAL, conntrack INTEGER, conntrack_max INTEGER,
  conntrack_new_per_s REAL, softirq_share REAL, tcp_handshakes_per_s REAL, tcp_acknowledged_per_s REAL);
CREATE INDEX tick_at ON tick(at, span);
CREATE TABLE attack(n INTEGER PRIMARY KEY, at REAL, span INTEGER NOT NULL DEFAULT 0, incident INTEGER,
  kind TEXT, target TEXT, pps REAL, peak_pps REAL, share REAL, confidence REAL, mine_share REAL,
  other_share REAL, kernel_share REAL);
CREATE INDEX attack_at ON attack(at, span);
CREATE TABLE rule_tick(n INTEGER PRIMARY KEY, at REAL, span INTEGER NOT NULL DEFAULT 0, rule_id TEXT,
  state TEXT, packets INTEGER, bytes INTEGER, pps REAL);
CREATE INDEX rule_tick_at ON rule_tick(at, span);
CREATE TABLE rule(id TEXT PRIMARY KEY, data BLOB);
CREATE TABLE event(n INTEGER PRIMARY KEY, at REAL, kind TEXT, subject TEXT, text TEXT, incident INTEGER);
CREATE TABLE evidence(n INTEGER PRIMARY KEY, at REAL, incident INTEGER, kind TEXT, pps REAL, data BLOB);
CREATE TABLE packet(n INTEGER PRIMARY KEY, at REAL, incident INTEGER, kind TEXT, length INTEGER,
  is_ethernet INTEGER, data BLOB);
CREATE VIEW session AS SELECT
  (SELECT value FROM meta WHERE name = 'host') AS host,
  (SELECT replace(value, char(10), ' ') FROM meta WHERE name = 'interfaces') AS interfaces,
  (SELECT value FROM meta WHERE name = 'netns') AS netns,
  (SELECT value FROM meta WHERE name = 'version') AS fwtop,
  (SELECT datetime(CAST(value AS REAL), 'unixepoch') FROM meta WHERE name = 'started') AS started,
  (SELECT datetime(CAST(value AS REAL), 'unixepoch') FROM meta WHERE name = 'ended') AS ended;
CREATE VIEW timeline AS SELECT
  datetime(at, 'unixepoch') AS time, span, pps AS arrived_pps, coalesce(peak_pps, pps) AS peak_pps,
  bps / 1e6 AS mbit_s, dropped_pps, mine_pps, other_pps, kernel_pps, accepted_pps, conntrack, conntrack_max,
  softirq_share, tcp_handshakes_per_s, tcp_acknowledged_per_s, at FROM tick ORDER BY at;
CREATE VIEW attacks AS SELECT
  incident, kind, datetime(min(at), 'unixepoch') AS first_seen, datetime(max(at), 'unixepoch') AS last_seen,
  max(coalesce(peak_pps, pps)) AS peak_pps, max(share) AS largest_share, max(confidence) AS confidence
  FROM attack GROUP BY incident ORDER BY min(at);
CREATE VIEW events AS SELECT
  datetime(at, 'unixepoch') AS time, replace(kind, '_', ' ') AS event, subject, text
  FROM event ORDER BY at, n;
CREATE VIEW rules AS SELECT
  rule_id, datetime(min(at), 'unixepoch') AS first_seen, datetime(max(at), 'unixepoch') AS last_seen,
  max(packets) AS packets, max(bytes) AS bytes, max(pps) AS peak_pps
  FROM rule_tick GROUP BY rule_id ORDER BY min(at);
"""


FORMAT = Format(APPLICATION_ID, VERSION, _TABLES)


@contextmanager
def reading(path: Path, *, whole: bool = True) -> Iterator[sqlite3.Connection]:
    """Open a session's database for reading, even while it is written or after a crash.

    `whole` checks all of its pages first. The file is never changed. Raises FwtopError if it is no session,
    damaged or not readable.
    """
    try:
        with _opened(path) as database:
            if whole:
                check_pages(database)
            yield database
    except sqlite3.Error as error:
        raise FwtopError(
            f"{safe_text(path)} is damaged or no session of fwtop ({safe_text(error)}); it was not changed; "
            "'fwtop sessions' lists the others"
        ) from None
    except PermissionError:
        raise FwtopError(f"{safe_text(path)} may not be read by you; try 'sudo fwtop report'", 3) from None
    except OSError as error:
        raise FwtopError(f"{safe_text(path)} can't be read: {error.strerror}") from None


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    # SQLite reports missing, forbidden and damaged files alike. Not by open(): closing another descriptor
    # of the file would drop the POSIX locks of a writer in the same process.
    path.stat()
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    database = connect(path, timeout=2.0, mode="ro")
    copy: tempfile.TemporaryDirectory[str] | None = None
    try:
        try:
            FORMAT.check(database)
        except sqlite3.OperationalError:
            # Reading a WAL database needs a writable directory: on read-only media or as another user, read
            # a copy.
            database.close()
            copy = tempfile.TemporaryDirectory(prefix="fwtop-")
            database = connect(_copied(path, Path(copy.name)), timeout=2.0)
            FORMAT.check(database)
        yield database
    finally:
        database.close()
        if copy is not None:
            copy.cleanup()


def _copied(path: Path, directory: Path) -> Path:
    for suffix in ("", "-wal"):
        source = Path(f"{path}{suffix}")
        if source.exists():
            shutil.copyfile(source, directory / f"session.db{suffix}")
    return directory / "session.db"
