"""Recording a session: one transaction per snapshot, and no error stops the console."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fwtop import __version__
from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.session import AttackEvidence, Event
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.store.database import (
    encode_value,
    identity,
    is_damage,
    is_gone,
    make_file,
    transaction,
    used_bytes,
)
from fwtop.store.directory import (
    DEFAULT_MAX_BYTES,
    SESSION_DIRECTORY,
    discard,
    drop_old,
    new_session,
    unlock_session,
)
from fwtop.store.events import EventLog, derive
from fwtop.store.rows import (
    FORMAT,
    halve_evidence,
    insert_events,
    insert_evidence,
    insert_rule_ticks,
    insert_series,
)
from fwtop.store.thinning import FULL_SECONDS, PINNED_EVENT, PINNED_PEAK, halve, roll_up, thin, truncated
from fwtop.store.trouble import Gap, Trouble, true_cause
from fwtop.store.upkeep import set_aside

_TIDY_SECONDS, _CROWDED_SECONDS = 30.0, 5.0  # the latter where the file is nearly as large as it may be
_MIN_SPACING_SECONDS = 0.9  # of stored snapshots; the time series keep every one
_MOST_SECONDS = 60.0  # that a point of the time series speaks for
_MAX_PRESSURE = 8  # steps, each of which halves what is kept
_ERRORS = (sqlite3.Error, OSError, FwtopError, MemoryError)


class SessionWriter:
    """Stores the snapshots of one session in a database, which is created with the first one.

    Errors such as a full disk are never raised: `problem` describes them in one line ("" otherwise), and
    writing is tried again. What began and ended meanwhile is stored then, and the gap is marked. `write` may
    be called from any thread, one call at a time.
    """

    def __init__(
        self,
        directory: Path = SESSION_DIRECTORY,
        *,
        host: str,
        interfaces: tuple[str, ...] = (),
        netns: str | None = None,
        version: str = __version__,
        geoip: str = "",
        max_bytes: int = DEFAULT_MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._interfaces = interfaces
        self._meta = {"host": host, "interfaces": "\n".join(interfaces), "netns": netns, "version": version}
        self._meta["geoip"] = geoip or None
        self._max_bytes = max_bytes
        self._clock = clock
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._file: tuple[int, int] | None = None  # device and inode of the session's
        self._log = EventLog()
        self._stored: Snapshot | None = None  # the last one
        self._gap: Gap | None = None
        self._trouble = Trouble("not stored", clock)
        self._untidy = Trouble("old observations are not thinned out", clock)
        self._tidy_at = self._crowded_at = float("-inf")
        self.path: Path | None = None
        self.news = ""  # a line about a session that was lost
        self._forget_rows()

    @property
    def problem(self) -> str:
        """Since when and why nothing is stored; "" while it is."""
        return self._trouble.line

    @property
    def warning(self) -> str:
        """Since when and why old observations take more space than they should; "" otherwise."""
        return "" if self._trouble.line else self._untidy.line

    def write(
        self, snapshot: Snapshot, events: Iterable[Event] = (), evidence: Iterable[AttackEvidence] = ()
    ) -> list[Event]:
        """Store a snapshot, evidence, and the events since the last one; returns the events, stored or not.

        They are `events` and those derived from the two snapshots.
        """
        found, evidence = [*self._log.next(snapshot), *events], tuple(evidence)
        if self._trouble.waits or not self._try(snapshot, found, evidence):
            since = self._stored.at if self._stored is not None else snapshot.started
            self._gap = self._gap or Gap(since, since)
            self._gap.miss(snapshot, found, evidence, self._trouble.cause)
        return found

    def close(self, *, clean: bool = True) -> None:
        """End the session, merge the WAL into the file, and delete that if it has no snapshot.

        What could not be stored is tried a last time. Without `clean` the session counts as crashed, as it
        does where the disk is full.
        """
        last = self._gap.take_last() if self._gap is not None else None
        if last is not None:
            self._try(last, [], ())
        if self._database is not None:
            with suppress(sqlite3.Error):
                if clean:
                    self._set_meta(self._database, {"ended": repr(time.time())})
            with suppress(sqlite3.Error):  # a reader may be active: the next session merges what is left
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._database.execute("PRAGMA journal_mode=DELETE")
        empty, path = self._empty, self.path
        self._abandon()
        if empty and path is not None:
            discard(path)
        else:
            self.path = path

    def _try(self, snapshot: Snapshot, events: list[Event], evidence: tuple[AttackEvidence, ...]) -> bool:
        """Store a snapshot, and what is held of a gap before it."""
        try:
            database = self._opened(snapshot.started)
            self._tidy(database, snapshot)
            with transaction(database):
                self._insert_all(database, snapshot, events, evidence)
        except _ERRORS as error:
            self._failed(error, snapshot)
            return False
        self._trouble.over()
        self._gap, self._stored, self._empty = None, snapshot, False
        return True

    def _opened(self, started: float) -> sqlite3.Connection:
        """Return the session's database: a new one if its file was deleted, opened anew after a failure."""
        if self.path is not None and is_gone(self.path, self._file):
            self.news = f"{self.path.name} was deleted while it was recorded; a new session was begun"
            self._abandon()
        if self.path is None:
            return self._create(started)
        if self._database is None:
            self._database = FORMAT.appending(self.path, self._max_bytes // 2)
        return self._database

    def _create(self, started: float) -> sqlite3.Connection:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        drop_old(self._directory, self._max_bytes // 4 * 3)
        path, lock = new_session(self._directory, started, self._interfaces)
        try:
            make_file(path)
            database = FORMAT.appending(path, self._max_bytes // 2, make=True)
            self._set_meta(database, {**self._meta, "started": repr(started)})
            self._file = identity(path)
        except BaseException:
            discard(path)
            os.close(lock)
            raise
        self.path, self._lock, self._database = path, lock, database
        return database

    def _failed(self, error: Exception, snapshot: Snapshot) -> None:
        """Note a failure: the transaction was rolled back, and the file is opened anew next time."""
        damaged = self.path is not None and is_damage(error)
        self._trouble.failed(
            true_cause(error, self.path, self._directory),
            self._gap.since if self._gap else self._stored.at if self._stored else snapshot.started,
        )
        if self.path is not None and damaged:
            path = self.path
            self._abandon()
            self.news = set_aside(path, error)
        elif self._database is not None:
            self._database.close()
            self._database = None
        empty = self._empty
        self._forget_rows()
        self._empty = empty or damaged
        self._tidy_at = float("-inf")  # makes room, if that is what was missing

    def _abandon(self) -> None:
        """Leave the session's file as it is; the next one begins with a new file."""
        if self._database is not None:
            self._database.close()
        if self._lock is not None and self.path is not None:
            unlock_session(self.path, self._lock)
        self._database = self._lock = self._file = self.path = None
        self._forget_rows()

    def _forget_rows(self) -> None:
        """Forget which rows the file holds."""
        self._empty = True
        self._rules_stored: set[str] = set()
        self._peak: tuple[float, int, int] | None = None  # packets per second, row, its other pin
        self._whole: tuple[int, Snapshot] | None = None  # row of untruncated proposals, and what it becomes
        self._last_at = float("-inf")

    def _set_meta(self, database: sqlite3.Connection, values: dict[str, str | None]) -> None:
        database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def _tidy(self, database: sqlite3.Connection, snapshot: Snapshot) -> None:
        """Thin out what is old, now and then; that it fails must not end the recording."""
        now, limit = self._clock(), self._max_bytes // 2
        if now < self._tidy_at and (now < self._crowded_at or used_bytes(database) <= limit * 7 // 8):
            return
        self._tidy_at, self._crowded_at = now + _TIDY_SECONDS, now + _CROWDED_SECONDS
        end = snapshot.at
        try:
            with transaction(database):
                _shrink(database, end)
            for pressure in range(1, _MAX_PRESSURE + 1):
                if used_bytes(database) <= limit * 3 // 4:
                    break
                with transaction(database):
                    _shrink(database, end, pressure=pressure)
            drop_old(self._directory, self._max_bytes)
        except _ERRORS as error:
            if is_damage(error):
                raise
            self._untidy.failed(true_cause(error, self.path, self._directory), end)
        else:
            self._untidy.over()

    def _insert_all(
        self,
        database: sqlite3.Connection,
        snapshot: Snapshot,
        events: list[Event],
        evidence: tuple[AttackEvidence, ...],
    ) -> None:
        told: list[Event] = []
        if self._empty and self._stored is not None:  # a file was lost: what it knew is told again
            told += derive(None, self._stored)
        seconds = None
        if self._gap is not None:
            told += self._gap.told()
            self._insert_gap(database, self._gap)
            seconds = min(max(snapshot.at - self._gap.until, 1e-3), _MOST_SECONDS)
        told += events
        insert_series(database, snapshot, seconds)
        insert_evidence(database, evidence)
        insert_events(database, told)
        self._insert_rules(database, snapshot.mitigations)
        self._insert_snapshot(database, snapshot, has_events=bool(told))

    def _insert_gap(self, database: sqlite3.Connection, gap: Gap) -> None:
        for held in gap.held():
            insert_series(database, held.snapshot, min(held.seconds, _MOST_SECONDS))
            self._insert_snapshot(database, held.snapshot, has_events=True)
        times = {held.snapshot.at for held in gap.held()}  # which have their rules' counters already
        insert_rule_ticks(database, ((at, status) for at, status in gap.rules.values() if at not in times))
        self._insert_rules(database, (status for _, status in gap.rules.values()))
        insert_evidence(database, gap.evidence.values())

    def _insert_rules(self, database: sqlite3.Connection, rules: Iterable[RuleStatus]) -> None:
        for status in rules:
            if status.rule.id not in self._rules_stored:
                stored = (status.rule.id, encode_value(status.rule))
                database.execute("INSERT OR REPLACE INTO rule VALUES (?, ?)", stored)
                self._rules_stored.add(status.rule.id)

    def _insert_snapshot(self, database: sqlite3.Connection, snapshot: Snapshot, *, has_events: bool) -> None:
        at, pps = snapshot.at, snapshot.tables.totals.pps
        is_peak = self._peak is None or pps > self._peak[0]
        if not has_events and not is_peak and 0 <= at - self._last_at < _MIN_SPACING_SECONDS:
            return
        otherwise = PINNED_EVENT if has_events else 0
        if self._whole is not None:  # the proposals of what is no longer the newest
            row_id, shorter = self._whole
            database.execute("UPDATE snapshot SET data = ? WHERE n = ?", (encode_value(shorter), row_id))
            self._whole = None
        newest, later = truncated(snapshot, installable=True), truncated(snapshot)
        row = (at, PINNED_PEAK if is_peak else otherwise, encode_value(newest))
        cursor = database.execute("INSERT INTO snapshot(at, pinned, data) VALUES (?, ?, ?)", row)
        self._last_at = at
        if later.judgement != newest.judgement:
            self._whole = (cursor.lastrowid or 0, later)
        if is_peak:
            if self._peak is not None:
                database.execute("UPDATE snapshot SET pinned = ? WHERE n = ?", (self._peak[2], self._peak[1]))
            self._peak = (pps, cursor.lastrowid or 0, otherwise)


def _shrink(database: sqlite3.Connection, now: float, *, pressure: int = 0) -> None:
    """Thin out snapshots and roll the series up; `pressure` above 0 sheds more, the older first."""
    thin(database, now)
    if pressure:
        halve_evidence(database)
        halve(database, now - FULL_SECONDS / 2 ** (pressure - 1))
    roll_up(database, now, pressure=pressure)
