"""The history: averages a minute, hour and day over all sessions, in a database bounded in size.

A minute is kept in memory, of which each tick leaves a copy in the database.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import ANSWERS, KINDS, TRAFFIC, HistoryPart, HistorySample
from fwtop.store.database import (
    Format,
    connect,
    decode_value,
    encode_value,
    identity,
    is_gone,
    make_file,
    transaction,
    used_bytes,
)
from fwtop.store.trouble import Trouble, is_busy, true_cause
from fwtop.store.upkeep import set_aside

_MINUTE_PARTS, _SPAN_PARTS = 20, 40  # of each kind in a minute; in an hour or a day
_MAX_PARTS = 2_000  # in memory
_MAX_WAITING = 60  # minutes that could not be stored yet
_LAST_BUSY_MS = 5_000  # at the end, which has no next attempt
_PATIENCE = 3  # attempts that may find the file in use
_ORPHANED_SECONDS = 180  # after which a copy belongs to no running process
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
# Made in a file of an earlier fwtop, too: what answered was not known before.
_ANSWERED = (
    "CREATE TABLE IF NOT EXISTS answered(scope INTEGER, key TEXT, at INTEGER, PRIMARY KEY(scope, key)) "
    "WITHOUT ROWID"
)
FORMAT = Format(APPLICATION_ID, VERSION, _TABLES)
_Whole = Meta(min_length=len(TRAFFIC), max_length=len(TRAFFIC))


class Bucket(Struct):
    """The sums of one span; `at` is its start."""

    at: int
    seconds: float = 0.0
    traffic: Annotated[list[float], _Whole] = field(default_factory=lambda: [0.0] * len(TRAFFIC))
    bits: float = 0.0
    peak_pps: float = 0.0
    parts: dict[str, HistoryPart] = field(default_factory=dict)

    def add(self, sample: HistorySample) -> None:
        """Add some seconds."""
        self.seconds += sample.seconds
        self.traffic = [have + more for have, more in zip(self.traffic, sample.traffic, strict=True)]
        self.bits += sample.bits
        self.peak_pps = max(self.peak_pps, sample.pps)
        for part in sample.parts:
            have = self.parts.get(place := f"{part.kind} {part.key}")
            self.parts[place] = part if have is None else _sum(have, part)
        if len(self.parts) > _MAX_PARTS:
            self.trim(_MAX_PARTS // len(KINDS) // 2)

    def trim(self, most: int) -> None:
        """Forget all but the largest parts of each kind."""
        self.parts = {f"{part.kind} {part.key}": part for part in self.largest(most)}

    def largest(self, most: int) -> list[HistoryPart]:
        """Return the largest parts of each kind."""
        ordered = sorted(self.parts.values(), key=lambda part: -part.packets)
        count = dict.fromkeys(KINDS, 0)
        found = []
        for part in ordered:
            count[part.kind] += 1
            if count[part.kind] <= most:
                found.append(part)
        return found

    def encoded(self) -> bytes:
        """Return a copy for the database."""
        copy = replace(self)
        copy.trim(_MINUTE_PARTS)
        return encode_value(copy)

    @staticmethod
    def decoded(data: bytes) -> Bucket:
        """Decode a copy; raises ValueError on anything else."""
        bucket = decode_value(Bucket, data)
        bucket.parts = {name: part for name, part in bucket.parts.items() if part.kind in KINDS}
        return bucket


class HistoryWriter:
    """Adds one recording to the history of its machine; errors are reported, never raised.

    Other recordings may do so at the same time. `news` says what was set aside.
    """

    def __init__(
        self,
        directory: Path = STATE_DIRECTORY,
        *,
        interfaces: Iterable[str] = (),
        netns: str | None = None,
        note: str = "",
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = directory / FILE_NAME
        self.news = ""
        self._scope_key = (netns or "", "\n".join(interfaces))
        self._note = note
        self._max_bytes = max_bytes
        self._trouble = Trouble("history not stored", clock)
        self._database: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode
        self._scope = 0  # of this transaction: another recording may have pruned it since the last one
        self._id = os.urandom(8).hex()
        self._minute: Bucket | None = None
        self._waiting: list[Bucket] = []
        self._answered: tuple[str, ...] = ()  # not stored yet
        self._seen_until = self._stored_until = 0.0  # Unix seconds
        self._failures = 0  # in a row
        self._pruned_at = 0

    @property
    def problem(self) -> str:
        """Since when and why nothing is stored; "" while it is."""
        return self._trouble.line

    def answered(self) -> list[str]:
        """Return the addresses and ports of ours that ever answered; none if the history can't be read."""
        try:
            with closing(connect(self.path, timeout=0.5, mode="ro")) as database:
                query = "SELECT id FROM scope WHERE netns = ? AND interfaces = ?"
                found = database.execute(query, self._scope_key).fetchone()
                return sorted(answered_keys(database, found[0]) or ()) if found is not None else []
        except sqlite3.Error:
            return []

    def add(self, sample: HistorySample) -> None:
        """Add the seconds since the last sample; a minute that is over is stored and rolled up."""
        at = int(sample.at) // MINUTE * MINUTE
        if self._minute is not None and self._minute.at != at:
            self._minute.trim(_MINUTE_PARTS)
            self._waiting = [*self._waiting, self._minute][-_MAX_WAITING:]
            self._minute = None
        self._minute = self._minute or Bucket(at)
        self._minute.add(sample)
        self._answered = sample.answered or self._answered
        self._seen_until = sample.at
        self._store()

    def add_span(self, span: int, bucket: Bucket) -> None:
        """Store a whole hour or day as it is; for data that was not recorded here."""
        with self._changing() as database:
            database.execute("UPDATE scope SET seen = ? WHERE id = ?", (bucket.at, self._scope))
            store(database, self._scope, span, bucket, _SPAN_PARTS)
            if span == HOUR:
                _roll_up(database, self._scope, bucket.at, HOUR, DAY)

    def close(self) -> None:
        """Store the last minute."""
        if self._minute is not None:
            self._waiting.append(self._minute)
            self._minute = None
            self._trouble.retry_now()
            if self._database is not None:  # recordings of several namespaces are often ended together
                self._database.execute(f"PRAGMA busy_timeout={_LAST_BUSY_MS}")
            self._store()
        if self._database is not None:
            with suppress(sqlite3.Error):  # another recording may be active: it merges its WAL
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._database.close()
            self._database = None

    def _store(self) -> None:
        if self._trouble.waits:
            return
        try:
            with self._changing() as database:
                for bucket in self._waiting:
                    self._store_minute(database, bucket)
                self._keep_copy(database)
                rows = [(self._scope, key, int(self._seen_until)) for key in self._answered]
                database.executemany("INSERT OR REPLACE INTO answered VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError, MemoryError) as error:
            self._failures += 1
            if is_busy(error) and self._failures < _PATIENCE:
                return  # nothing is lost: other recordings add to the same file
            since = self._stored_until or (self._minute.at if self._minute is not None else 0)
            self._trouble.failed(true_cause(error, self.path, self.path.parent), since)
            self._reopen()
        else:
            self._trouble.over()
            self._failures = 0
            self._waiting, self._answered, self._stored_until = [], (), self._seen_until

    def _reopen(self) -> None:
        """Open the file anew next time, which sets it aside if it is damaged."""
        if self._database is not None:
            self._database.close()
        self._database = None

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        if self._database is not None and is_gone(self.path, self._file):
            self._reopen()
            self.news = f"{self.path.name} was deleted while it was written; a new one was begun"
        if self._database is None:
            self._database, line = open_for_writing(self.path, self._max_bytes)
            self.news = line or self.news
            self._file = identity(self.path)
        with transaction(self._database) as database:
            self._scope = _scope_id(database, self._scope_key, self._note, self._seen_until)
            yield database

    def _store_minute(self, database: sqlite3.Connection, bucket: Bucket) -> None:
        store(database, self._scope, MINUTE, bucket, _MINUTE_PARTS)
        self._adopt(database, bucket.at)
        _roll_up(database, self._scope, bucket.at, MINUTE, HOUR)
        _roll_up(database, self._scope, bucket.at, HOUR, DAY)
        if bucket.at - self._pruned_at >= HOUR or used_bytes(database) > self._max_bytes * 8 // 10:
            prune(database, bucket.at, self._max_bytes)
            self._pruned_at = bucket.at

    def _adopt(self, database: sqlite3.Connection, now: int) -> None:
        """Store minutes whose process was killed."""
        old = now - _ORPHANED_SECONDS
        rows = database.execute("SELECT writer, scope, data FROM pending WHERE at < ?", (old,)).fetchall()
        for writer, scope, data in rows:
            database.execute("DELETE FROM pending WHERE writer = ?", (writer,))
            try:
                bucket = Bucket.decoded(data)
            except (ValueError, TypeError):
                continue
            store(database, scope, MINUTE, bucket, _MINUTE_PARTS)
            _roll_up(database, scope, bucket.at, MINUTE, HOUR)
            _roll_up(database, scope, bucket.at, HOUR, DAY)

    def _keep_copy(self, database: sqlite3.Connection) -> None:
        if self._minute is None:
            database.execute("DELETE FROM pending WHERE writer = ?", (self._id,))
            return
        row = (self._id, self._scope, self._minute.at, self._minute.encoded())
        database.execute("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)", row)


def store(database: sqlite3.Connection, scope: int, span: int, bucket: Bucket, most: int) -> None:
    """Add a bucket to what is stored of its span."""
    row = (scope, span, bucket.at, bucket.seconds, *bucket.traffic, bucket.bits, bucket.peak_pps)
    sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in ("seconds", *TRAFFIC, "bits"))
    database.execute(
        "INSERT INTO bucket VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        f"{sums}, peak_pps = max(peak_pps, excluded.peak_pps)",
        row,
    )
    for part in bucket.largest(most):
        name = _name_id(database, part)
        values = (scope, span, bucket.at, name, round(part.packets), _whole(part.dropped))
        database.execute(
            "INSERT INTO part VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "packets = packets + excluded.packets, dropped = dropped + excluded.dropped",
            values,
        )


def _name_id(database: sqlite3.Connection, part: HistoryPart) -> int:
    key, label = safe_text(part.key, limit=80), safe_text(part.label, limit=80)
    found = database.execute("SELECT id FROM name WHERE kind = ? AND key = ?", (part.kind, key)).fetchone()
    if found is not None:
        return int(found[0])
    query = "INSERT INTO name(kind, key, label) VALUES (?, ?, ?)"
    return int(database.execute(query, (part.kind, key, label)).lastrowid or 0)


def _roll_up(database: sqlite3.Connection, scope: int, at: int, span: int, to: int) -> None:
    """Sum the spans of the hour or day around a time anew: what is unfinished grows."""
    values = {"scope": scope, "span": span, "to": to, "at": at // to * to, "most": _SPAN_PARTS}
    sums = ", ".join(f"sum({name})" for name in ("seconds", *TRAFFIC, "bits"))
    within = "scope = :scope AND span = :span AND at >= :at AND at < :at + :to"
    database.execute(
        f"INSERT OR REPLACE INTO bucket SELECT :scope, :to, :at, {sums}, max(peak_pps) "
        f"FROM bucket WHERE {within} GROUP BY scope",
        values,
    )
    database.execute("DELETE FROM part WHERE scope = :scope AND span = :to AND at = :at", values)
    database.execute(
        "INSERT INTO part SELECT :scope, :to, :at, name, packets, dropped FROM (SELECT name, "
        "sum(packets) AS packets, sum(dropped) AS dropped, row_number() OVER "
        "(PARTITION BY kind ORDER BY sum(packets) DESC) AS place FROM part JOIN name ON name.id = part.name "
        f"WHERE {within} GROUP BY name) WHERE place <= :most",
        values,
    )


def _scope_id(database: sqlite3.Connection, key: tuple[str, str], note: str, seen: float) -> int:
    query = (
        "INSERT INTO scope(netns, interfaces, note, seen) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET seen = max(seen, excluded.seen) RETURNING id"
    )
    return int(database.execute(query, (*key, note, seen)).fetchone()[0])


def _sum(one: HistoryPart, other: HistoryPart) -> HistoryPart:
    known = one.dropped is not None or other.dropped is not None
    dropped = (one.dropped or 0.0) + (other.dropped or 0.0) if known else None
    return HistoryPart(one.kind, one.key, one.packets + other.packets, dropped, one.label or other.label)


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


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
    if not path.exists():
        make_file(path, 0)
    database = FORMAT.appending(path, max_bytes, timeout=0.5, make=True, whole=True)
    database.execute(_ANSWERED)
    return database


def answered_keys(database: sqlite3.Connection, scope: int) -> frozenset[str] | None:
    """Return the addresses and ports that ever answered; None if no fwtop that notes that was here yet."""
    if database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'answered'").fetchone() is None:
        return None
    query = "SELECT key FROM answered WHERE scope = ? ORDER BY at DESC LIMIT ?"
    return frozenset(safe_text(key, limit=80) for (key,) in database.execute(query, (scope, ANSWERS)))


def prune(database: sqlite3.Connection, now: float, max_bytes: int = MAX_BYTES) -> None:
    """Delete what is too old; near the size limit, more and more of the oldest."""
    # Those of the host go last: labs come and go in namespaces.
    old = "SELECT id FROM scope WHERE id NOT IN "
    old += "(SELECT id FROM scope ORDER BY netns <> '', seen DESC LIMIT ?)"
    for (scope,) in database.execute(old, (_MOST_SCOPES,)).fetchall():
        for table in ("bucket", "part", "pending", "answered"):
            database.execute(f"DELETE FROM {table} WHERE scope = ?", (scope,))
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
                    f"DELETE FROM {table} WHERE scope = ? AND span = ? AND at < ?",
                    (scope, span, before),
                )
    database.execute("DELETE FROM answered WHERE at < ?", (now - KEPT[DAY],))
    database.execute("DELETE FROM name WHERE id NOT IN (SELECT name FROM part)")
