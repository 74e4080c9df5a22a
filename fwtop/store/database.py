"""How the store opens its databases, and how it encodes values.

SQLite may make no file but those beside the database: the sandbox refuses files anywhere else. SQLite asks
access(2) for a place for its temporary files, which Landlock does not answer, so it picks /var/tmp and fails
there with "unable to open database file": in a statement that needs more than 64 KiB to be rolled back, or
in a large sort.

Values are compressed MessagePack: a field added to a class needs no change here, as a reader
with other fields ignores unknown ones and uses defaults for missing ones.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from msgspec import Struct

from fwtop.model.wire import pack, unpack

_MAX_VALUE_BYTES = 64 << 20
CACHE_KIB = 256  # of pages, for writers: they append, and SQLite's own 2 MiB would never be asked again


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


def make_file(path: Path, flags: int = os.O_EXCL) -> None:
    """Make an empty file that only its owner can read; raises OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC | flags, 0o600))


def check_pages(database: sqlite3.Connection) -> None:
    """Read all pages; raises sqlite3.DatabaseError if the file is damaged."""
    found = database.execute("PRAGMA quick_check(1)").fetchone()
    if found is None or found[0] != "ok":
        raise sqlite3.DatabaseError("damaged pages")


class Format(Struct, frozen=True):
    """Whose tables these are, in which format."""

    application_id: int  # in the file header, for file(1) and readers
    version: int
    tables: str

    def check(self, database: sqlite3.Connection) -> None:
        """Raise sqlite3.DatabaseError unless these are those tables, in this format."""
        if database.execute("PRAGMA application_id").fetchone()[0] != self.application_id:
            raise sqlite3.DatabaseError("not written by fwtop")
        found = database.execute("PRAGMA user_version").fetchone()[0]
        if found != self.version:
            raise sqlite3.DatabaseError(f"written in format {found}, this fwtop reads {self.version}")

    def appending(
        self, path: Path, max_bytes: int, *, timeout: float = 1.0, make: bool = False, whole: bool = False
    ) -> sqlite3.Connection:
        """Open a database to add a little each second; raises sqlite3.Error.

        `make` makes the tables of an empty one, `whole` checks all pages. WAL permits concurrent readers, and
        committed data survives kill -9. The page limit is the last line of defence against growth.
        """
        database = connect(path, timeout=timeout)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            # A power failure loses seconds at most; an fsync per snapshot would stall the console.
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute("PRAGMA journal_size_limit=4194304")
            database.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            page_size = int(database.execute("PRAGMA page_size").fetchone()[0])
            database.execute(f"PRAGMA max_page_count={max(max_bytes // page_size, 64)}")
            if make and database.execute("PRAGMA schema_version").fetchone()[0] == 0:
                database.execute(f"PRAGMA application_id={self.application_id}")
                version = f"PRAGMA user_version={self.version}"
                database.executescript(f"BEGIN IMMEDIATE;{self.tables}{version};COMMIT;")
            self.check(database)
            if whole:
                check_pages(database)
        except BaseException:
            database.close()
            raise
        return database


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


_ZLIB_LEVEL = 1  # level 6: a sixth smaller, three times as slow
_MAX_BYTES = 64 << 20  # of a decoded value: bounds memory if a file is damaged
_T = TypeVar("_T")


def encode_value(value: object) -> bytes:
    """Encode any frozen value of the model; a busy snapshot takes about 6 KB."""
    return zlib.compress(pack(value), _ZLIB_LEVEL)


def decode_value(cls: type[_T], data: bytes) -> _T:
    """Decode a `cls` that `encode_value` encoded; raises ValueError on anything else."""
    unpacker = zlib.decompressobj()
    try:
        packed = unpacker.decompress(data, _MAX_BYTES)
    except zlib.error:
        raise ValueError(f"a stored {cls.__name__} is damaged") from None
    if not unpacker.eof:
        raise ValueError(f"a stored {cls.__name__} is cut short or too large")
    try:
        return unpack(cls, packed)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a stored {cls.__name__} is damaged ({type(error).__name__})") from None
