"""Baselines of normal traffic, carried from one session to the next."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.text import safe_text
from fwtop.store.database import connect, transaction

_MAX_HOSTS = 64
_MAX_BYTES = 32 << 20
_TABLE = """CREATE TABLE IF NOT EXISTS baseline(
  host TEXT, netns TEXT, saved REAL, data BLOB, PRIMARY KEY(host, netns))"""


class BaselineStore:
    """One opaque blob per host and network namespace; errors are reported, never raised."""

    def __init__(self, directory: Path = STATE_DIRECTORY) -> None:
        self._path = directory / "baselines.db"

    def get(self, host: str, netns: str | None = None) -> bytes | None:
        """Return the latest blob of a host, None if there is none or it can't be read."""
        if not self._path.exists():
            return None
        try:
            with closing(self._opened("ro")) as database:
                query = "SELECT data FROM baseline WHERE host = ? AND netns = ?"
                row = database.execute(query, (host, netns or "")).fetchone()
        except (sqlite3.Error, OSError):
            return None
        return bytes(row[0]) if row else None

    def put(self, host: str, data: bytes, netns: str | None = None) -> str:
        """Replace the blob of a host; returns "" or one line on why it was not stored."""
        if len(data) > _MAX_BYTES:
            return f"the baseline is not stored: {len(data)} bytes exceed {_MAX_BYTES}"
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._replace(host, data, netns or "")
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:  # damaged: baselines can be learned again
                self._path.unlink(missing_ok=True)
                self._replace(host, data, netns or "")
        except (sqlite3.Error, OSError) as error:
            return (
                f"the baseline is not stored ({safe_text(error, limit=80)}); the next session learns it again"
            )
        return ""

    def _replace(self, host: str, data: bytes, netns: str) -> None:
        with closing(self._opened("rwc")) as opened, transaction(opened) as database:
            database.execute(_TABLE)
            values = (host, netns, time.time(), data)
            database.execute("INSERT OR REPLACE INTO baseline VALUES (?, ?, ?, ?)", values)
            database.execute(
                "DELETE FROM baseline WHERE rowid NOT IN "
                "(SELECT rowid FROM baseline ORDER BY netns <> '', saved DESC LIMIT ?)",
                (_MAX_HOSTS,),
            )

    def _opened(self, mode: str) -> sqlite3.Connection:
        return connect(self._path, timeout=1.0, mode=mode)
