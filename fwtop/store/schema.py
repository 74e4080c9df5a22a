"""The tables of a session's database, and how it is created and opened."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

APPLICATION_ID = 0x66777470  # "fwtp" in the file header, for file(1) and the reader
VERSION = 2
_MAX_VALUE_BYTES = 64 << 20

TABLES = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE snapshot(n INTEGER PRIMARY KEY, at REAL, pinned INTEGER, data BLOB);
CREATE INDEX snapshot_at ON snapshot(at, pinned);
CREATE TABLE tick(n INTEGER PRIMARY KEY, at REAL, pps REAL, bps REAL, dropped_pps REAL, accepted_pps REAL,
  one_in REAL, lost_per_s REAL, conntrack INTEGER, conntrack_max INTEGER, conntrack_new_per_s REAL,
  softirq_share REAL, tcp_handshakes_per_s REAL, tcp_acknowledged_per_s REAL);
CREATE INDEX tick_at ON tick(at);
CREATE TABLE attack(n INTEGER PRIMARY KEY, at REAL, kind TEXT, pps REAL, share REAL, confidence REAL);
CREATE INDEX attack_at ON attack(at);
CREATE TABLE rule_tick(n INTEGER PRIMARY KEY, at REAL, rule_id TEXT, state TEXT, packets INTEGER,
  bytes INTEGER, pps REAL);
CREATE INDEX rule_tick_at ON rule_tick(at);
CREATE TABLE rule(id TEXT PRIMARY KEY, data BLOB);
CREATE TABLE event(n INTEGER PRIMARY KEY, at REAL, kind TEXT, subject TEXT, text TEXT);
"""


def create(path: Path, *, max_bytes: int) -> sqlite3.Connection:
    """Create a database that only its owner can read; raises OSError or sqlite3.Error.

    WAL permits concurrent readers, and committed data survives kill -9. The page limit is the last line of
    defence against growth.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    # write() may be called from any thread, but one call at a time.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    try:
        database.execute(f"PRAGMA application_id={APPLICATION_ID}")
        database.execute(f"PRAGMA user_version={VERSION}")
        database.execute("PRAGMA journal_mode=WAL")
        # A power failure loses seconds at most; an fsync per snapshot would stall the console.
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("PRAGMA journal_size_limit=4194304")
        page_size = int(database.execute("PRAGMA page_size").fetchone()[0])
        database.execute(f"PRAGMA max_page_count={max(max_bytes // page_size, 64)}")
        database.executescript(f"BEGIN;{TABLES}COMMIT;")
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a session's database for reading, even while it is written or after a crash.

    Raises FwtopError if it is no session, damaged or not readable.
    """
    try:
        with _opened(path) as database:
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
    database = _connect(path)
    copy: tempfile.TemporaryDirectory[str] | None = None
    try:
        try:
            _check(database)
        except sqlite3.OperationalError:
            # Reading a WAL database needs a writable directory: on read-only media or as another user, read
            # a copy.
            database.close()
            copy = tempfile.TemporaryDirectory(prefix="fwtop-")
            database = _connect(_copied(path, Path(copy.name)))
            _check(database)
        yield database
    finally:
        database.close()
        if copy is not None:
            copy.cleanup()


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", uri=True, timeout=2.0, isolation_level=None
    )
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    database.execute("PRAGMA trusted_schema=OFF")  # the process that wrote the file parses untrusted packets
    return database


def _copied(path: Path, directory: Path) -> Path:
    for suffix in ("", "-wal"):
        source = Path(f"{path}{suffix}")
        if source.exists():
            shutil.copyfile(source, directory / f"session.db{suffix}")
    return directory / "session.db"


def _check(database: sqlite3.Connection) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise sqlite3.DatabaseError("not written by fwtop")
    if version != VERSION:
        raise sqlite3.DatabaseError(f"written in format {version}, this fwtop reads format {VERSION}")
    database.execute("SELECT 1 FROM meta LIMIT 1").fetchone()
