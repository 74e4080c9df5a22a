"""Random access by time to a stored session, for playing it back: one snapshot at a time in memory."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from fwtop.model.traffic.session import EventKind, Mark
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.store.reader import decoded, stored_event
from fwtop.store.schema import reading

_LATEST = 253_402_300_799.0  # the last second of the year 9999; a damaged file may hold anything
_MOST_EVENTS = 2_000  # the newest ones
_MOST_PINNED = 20_000
_MOST_TICKS = 4_000
_DAMAGED = 16  # snapshots in a row that are passed over


class SeriesPoint(Struct, frozen=True):
    """A point of a session's time series: rates a second."""

    at: float
    pps: float
    bps: float
    dropped_pps: float
    accepted_pps: float
    mine_pps: float  # dropped by fwtop's rules
    other_pps: float  # by other firewalls
    handshakes_per_s: float | None
    acknowledged_per_s: float | None
    attack: bool


class Playback:
    """An open session. Use it in the thread that opened it: SQLite refuses any other."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database = database
        self._path = path

    def span(self) -> tuple[float, float] | None:
        """Return the times of the first and last snapshot; None without one."""
        query = "SELECT min(at), max(at) FROM snapshot WHERE at BETWEEN 0 AND ?"
        first, last = self._database.execute(query, (_LATEST,)).fetchone()
        return None if first is None else (float(first), float(last))

    def locate(self, at: float) -> float:
        """Return the time of the last snapshot up to a time, or of the first one if none was taken before."""
        query = "SELECT max(at) FROM snapshot WHERE at BETWEEN 0 AND ?"
        found = self._database.execute(query, (min(at, _LATEST),)).fetchone()[0]
        if found is None:
            span = self.span()
            return span[0] if span is not None else at
        return float(found)

    def snapshot(self, at: float) -> Snapshot | None:
        """Return the snapshot of a time, or the last intact one before it; None: none is near."""
        query = f"SELECT data FROM snapshot WHERE at BETWEEN 0 AND ? ORDER BY at DESC LIMIT {_DAMAGED}"  # noqa: S608
        for row in self._database.execute(query, (min(at, _LATEST),)):
            for snapshot in decoded(self._path, row):
                return snapshot
        return None

    def beside(self, at: float, count: int) -> float | None:
        """Return when the snapshot `count` after (before, if negative) a time was taken.

        If there are fewer, the last one that way; None if there is none.
        """
        if count > 0:
            query = "SELECT at FROM snapshot WHERE at > ?1 AND at <= ?2 ORDER BY at LIMIT ?3"
        else:
            query = "SELECT at FROM snapshot WHERE at < ?1 AND at BETWEEN 0 AND ?2 ORDER BY at DESC LIMIT ?3"
        found = self._database.execute(query, (at, _LATEST, abs(count))).fetchall()
        return float(found[-1][0]) if found else None

    def marks(self) -> tuple[Mark, ...]:
        """Return the newest events, oldest first."""
        query = (
            "SELECT at, kind, subject, text FROM event WHERE at BETWEEN 0 AND ? AND kind IN "  # noqa: S608
            f"({', '.join('?' * len(EventKind))}) ORDER BY n DESC LIMIT {_MOST_EVENTS}"
        )
        kinds = [kind.value for kind in EventKind]
        rows = self._database.execute(query, (_LATEST, *kinds)).fetchall()[::-1]
        query = "SELECT at FROM snapshot WHERE pinned > 0 AND at BETWEEN 0 AND ? ORDER BY at LIMIT ?"
        pinned = [float(row[0]) for row in self._database.execute(query, (_LATEST, _MOST_PINNED))]
        marks = []
        for row in rows:
            place = bisect_left(pinned, row[0])
            marks.append(Mark(pinned[place] if place < len(pinned) else float(row[0]), stored_event(row)))
        return tuple(sorted(marks, key=lambda mark: mark.at))

    def series(self, since: float, until: float) -> list[SeriesPoint]:
        """Return the time series after `since` up to `until`, oldest first."""
        within = (since, min(until, _LATEST))
        query = (
            "SELECT at, pps, bps, dropped_pps, accepted_pps, mine_pps, other_pps, tcp_handshakes_per_s, "  # noqa: S608
            "tcp_acknowledged_per_s, at IN (SELECT at FROM attack WHERE at > ?1 AND at <= ?2) "
            f"FROM tick WHERE at > ?1 AND at <= ?2 ORDER BY at DESC LIMIT {_MOST_TICKS}"
        )
        rows = self._database.execute(query, within).fetchall()[::-1]
        return [SeriesPoint(*row) for row in rows if all(isinstance(value, int | float) for value in row[:7])]


@contextmanager
def playback(path: Path, *, whole: bool = True) -> Iterator[Playback]:
    """Open a session for playing, also one that is still being recorded. Raises FwtopError.

    `whole` checks all of its pages first.
    """
    with reading(path, whole=whole) as database:
        yield Playback(database, path)
