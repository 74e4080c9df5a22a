"""Recording a session: one transaction per snapshot, and no error stops the console."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fwtop import __version__
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.flow import flow_of
from fwtop.model.traffic.session import AttackEvidence, Event, EventKind
from fwtop.model.traffic.snapshot import Attack, Snapshot
from fwtop.store.codec import encode_snapshot, encode_value
from fwtop.store.directory import (
    DEFAULT_MAX_BYTES,
    SESSION_DIRECTORY,
    discard,
    drop_old,
    lock_session,
    session_id,
    session_paths,
    unlock_session,
)
from fwtop.store.events import EventLog
from fwtop.store.evidence import halve_evidence, insert_evidence
from fwtop.store.rollup import roll_up
from fwtop.store.schema import create
from fwtop.store.thinning import FULL_SECONDS, PINNED_EVENT, PINNED_PEAK, halve, thin, truncated

_RETRY_SECONDS = 30.0
_TIDY_SECONDS = 30.0
_MIN_SPACING_SECONDS = 0.9  # of stored snapshots; the time series keep every one
_MAX_PENDING_EVENTS = 200
_MAX_PRESSURE = 8  # steps, each of which halves what is kept
_INSERT_TICK = (
    "INSERT INTO tick(at, pps, bps, dropped_pps, accepted_pps, one_in, lost_per_s, conntrack, conntrack_max, "
    "conntrack_new_per_s, softirq_share, tcp_handshakes_per_s, tcp_acknowledged_per_s, mine_pps, other_pps, "
    "kernel_pps) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class SessionWriter:
    """Stores the snapshots of one session in a database, which is created with the first one.

    Errors such as a full disk are never raised: `problem` describes them in one line ("" otherwise), and
    writing is retried every 30 s. `write` may be called from any thread, one call at a time.
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
        self._log = EventLog()
        self._rules_stored: set[str] = set()
        self._peak: tuple[float, int, int] | None = None  # packets per second, row, its other pin
        self._whole: tuple[int, Snapshot] | None = None  # row of untruncated proposals, and what it becomes
        self._retry_at = float("-inf")
        self._tidy_at = float("-inf")
        self._last_at = float("-inf")
        self._missed = 0
        self._pending: list[Event] = []  # not stored yet
        self._empty = True
        self.problem = ""
        self.path: Path | None = None

    def write(
        self, snapshot: Snapshot, events: Iterable[Event] = (), evidence: Iterable[AttackEvidence] = ()
    ) -> list[Event]:
        """Store a snapshot, evidence, and the events since the last one; returns the events, stored or not.

        They are `events` and those derived from the two snapshots.
        """
        found = [*self._log.next(snapshot), *events]
        self._pending = [*self._pending, *found][-_MAX_PENDING_EVENTS:]
        now = self._clock()
        if self.problem and now < self._retry_at:
            self._missed += 1
            return found
        try:
            database = self._database or self._create(snapshot.started)
            self._tidy(database, snapshot, now)
            if self._missed:
                text = f"{self._missed} snapshots before this one could not be stored"
                self._pending.append(Event(_end(snapshot), EventKind.STORING_RESUMED, "storing", text))
            self._transaction(database, lambda: self._insert(database, snapshot, self._pending, evidence))
        except (sqlite3.Error, OSError, FwtopError) as error:
            self._failed(error, now)
            return found
        self.problem, self._missed, self._pending, self._empty = "", 0, [], False
        return found

    def close(self, *, clean: bool = True) -> None:
        """End the session, merge the WAL into the file, and delete that if it has no snapshot.

        Without `clean` it counts as crashed, as it does where the disk is full.
        """
        if self._database is not None:
            with suppress(sqlite3.Error):
                if clean:
                    self._set_meta(self._database, {"ended": repr(time.time())})
            with suppress(sqlite3.Error):  # a reader may be active: the next session merges what is left
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._database.execute("PRAGMA journal_mode=DELETE")
            self._database.close()
            self._database = None
        if self._lock is not None and self.path is not None:
            unlock_session(self.path, self._lock)
            self._lock = None
        if self._empty and self.path is not None:
            discard(self.path)
            self.path = None

    def _create(self, started: float) -> sqlite3.Connection:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        drop_old(self._directory, self._max_bytes // 4 * 3)
        taken = {path.stem for path in session_paths(self._directory)}
        stem = session_id(started, self._interfaces)
        names = (stem, *(f"{stem}-{number}" for number in range(2, 1_000)))
        path = self._directory / f"{next(name for name in names if name not in taken)}.db"
        lock = lock_session(path)
        try:
            database = create(path, max_bytes=self._max_bytes // 2)
            self._set_meta(database, {**self._meta, "started": repr(started)})
        except BaseException:
            discard(path)
            os.close(lock)
            raise
        self.path, self._lock, self._database = path, lock, database
        return database

    def _failed(self, error: Exception, now: float) -> None:
        self.problem = (
            f"the session is not being stored ({_reason(error)}); watching continues; check {self._directory}"
        )
        self._missed += 1
        self._retry_at = now + _RETRY_SECONDS
        # The transaction was rolled back.
        self._rules_stored.clear()
        self._peak = self._whole = None

    def _transaction(self, database: sqlite3.Connection, work: Callable[[], None]) -> None:
        database.execute("BEGIN IMMEDIATE")
        try:
            work()
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _set_meta(self, database: sqlite3.Connection, values: dict[str, str | None]) -> None:
        database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def _tidy(self, database: sqlite3.Connection, snapshot: Snapshot, now: float) -> None:
        if now < self._tidy_at:
            return
        self._tidy_at = now + _TIDY_SECONDS
        end = _end(snapshot)
        self._transaction(database, partial(_shrink, database, end))
        for pressure in range(1, _MAX_PRESSURE + 1):
            if _used_bytes(database) <= self._max_bytes // 2 * 3 // 4:
                break
            self._transaction(database, partial(_shrink, database, end, pressure=pressure))
        drop_old(self._directory, self._max_bytes)

    def _insert(
        self,
        database: sqlite3.Connection,
        snapshot: Snapshot,
        events: list[Event],
        evidence: Iterable[AttackEvidence],
    ) -> None:
        at = _end(snapshot)
        self._insert_series(database, snapshot, at)
        insert_evidence(database, evidence)
        for event in events:
            values = (event.at, event.kind.value, event.subject, event.text)
            database.execute("INSERT INTO event(at, kind, subject, text) VALUES (?, ?, ?, ?)", values)
        for status in snapshot.mitigations:
            if status.rule.id not in self._rules_stored:
                stored = (status.rule.id, encode_value(status.rule))
                database.execute("INSERT OR REPLACE INTO rule VALUES (?, ?)", stored)
                self._rules_stored.add(status.rule.id)
        pps = snapshot.tables.totals.pps
        is_peak = self._peak is None or pps > self._peak[0]
        if not events and not is_peak and 0 <= at - self._last_at < _MIN_SPACING_SECONDS:
            return
        otherwise = PINNED_EVENT if events else 0
        self._truncate_last(database)
        newest, later = truncated(snapshot, installable=True), truncated(snapshot)
        row = (at, PINNED_PEAK if is_peak else otherwise, encode_snapshot(newest))
        cursor = database.execute("INSERT INTO snapshot(at, pinned, data) VALUES (?, ?, ?)", row)
        self._last_at = at
        if later.judgement != newest.judgement:
            self._whole = (cursor.lastrowid or 0, later)
        if is_peak:
            if self._peak is not None:
                database.execute("UPDATE snapshot SET pinned = ? WHERE n = ?", (self._peak[2], self._peak[1]))
            self._peak = (pps, cursor.lastrowid or 0, otherwise)

    def _truncate_last(self, database: sqlite3.Connection) -> None:
        """Truncate the proposals of the snapshot that is no longer the newest."""
        if self._whole is not None:
            row, snapshot = self._whole
            database.execute("UPDATE snapshot SET data = ? WHERE n = ?", (encode_snapshot(snapshot), row))
            self._whole = None

    def _insert_series(self, database: sqlite3.Connection, snapshot: Snapshot, at: float) -> None:
        totals, sampling, conntrack = snapshot.tables.totals, snapshot.tables.sampling, snapshot.conntrack
        seconds = max(snapshot.seconds, 1e-3)
        tcp = snapshot.tcp
        service = (tcp.handshakes_per_s, tcp.acknowledged_per_s) if tcp else (None, None)
        table = (conntrack.count, conntrack.max, conntrack.new_per_s) if conntrack else (None, None, None)
        row = (
            at,
            totals.pps,
            totals.bps,
            totals.dropped / seconds,
            totals.accepted / seconds,
            sampling.one_in,
            sampling.lost / seconds,
            *table,
            snapshot.softirq_share,
            *service,
            *_drops(snapshot),
        )
        database.execute(_INSERT_TICK, row)
        database.executemany(
            "INSERT INTO attack(at, kind, target, pps, share, confidence, mine_share, other_share, "
            "kernel_share) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(at, *_attack(attack)) for attack in snapshot.judgement.attacks],
        )
        database.executemany(
            "INSERT INTO rule_tick(at, rule_id, state, packets, bytes, pps) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (at, item.rule.id, item.state.value, item.packets, item.bytes, item.pps)
                for item in snapshot.mitigations
            ],
        )


def _drops(snapshot: Snapshot) -> tuple[float | None, ...]:
    """Return what fwtop's rules, other firewalls and the kernel dropped a second."""
    flow = flow_of(snapshot)
    return (flow.mine, flow.other, flow.kernel) if flow is not None else (None, None, None)


def _attack(attack: Attack) -> tuple[object, ...]:
    shares = (attack.mine_share, attack.other_share, attack.kernel_share)
    return attack.kind, attack.target, attack.pps, attack.share, attack.confidence, *shares


def _end(snapshot: Snapshot) -> float:
    return snapshot.started + snapshot.seconds


def _reason(error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return safe_text(why, limit=80)


def _shrink(database: sqlite3.Connection, now: float, *, pressure: int = 0) -> None:
    """Thin out snapshots and roll the series up; `pressure` above 0 sheds more, the older first."""
    thin(database, now)
    if pressure:
        halve_evidence(database)
        halve(database, now - FULL_SECONDS / 2 ** (pressure - 1))
    roll_up(database, now, pressure=pressure)


def _used_bytes(database: sqlite3.Connection) -> int:
    pages, free, size = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
