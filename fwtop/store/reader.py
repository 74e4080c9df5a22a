"""Reading stored sessions: the list, a whole one for a report, its snapshots in order or by time."""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import (
    STOPPED,
    AttackTick,
    Event,
    EventKind,
    Mark,
    PastAttack,
    RuleTick,
    SessionInfo,
    SessionRecord,
    Tick,
)
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.store.database import decode_value
from fwtop.store.directory import SESSION_DIRECTORY, is_running, session_paths, size_bytes
from fwtop.store.rows import reading, stored_evidence, stored_packets

_CHUNK = 64
_EVENT_KINDS = frozenset(kind.value for kind in EventKind)
_TICK_COLUMNS = (
    "at, pps, bps, dropped_pps, accepted_pps, one_in, lost_per_s, conntrack, conntrack_max, "
    "conntrack_new_per_s, softirq_share, tcp_handshakes_per_s, tcp_acknowledged_per_s, seconds, "
    "coalesce(peak_pps, pps), coalesce(peak_bps, bps), mine_pps, other_pps, kernel_pps"
)


def list_sessions(directory: Path = SESSION_DIRECTORY) -> list[SessionInfo]:
    """List all sessions, oldest first; an unreadable one has the state "damaged"."""
    listed = []
    for path in session_paths(directory):
        try:
            listed.append(session_info(path))
        except FwtopError:
            listed.append(_damaged(path))
    return listed


def session_info(path: Path) -> SessionInfo:
    """Return the entry of one session in the list; raises FwtopError if it can't be read."""
    with reading(path, whole=False) as database:
        return _info(database, path)


_PAST_SESSIONS = 24  # the newest, which are looked through for their attacks
_PAST_ATTACKS = 8
_ENDED = (
    "SELECT (SELECT min(at) FROM event AS one WHERE one.incident = event.incident), at, subject, text, "
    "(SELECT max(other_share) FROM attack WHERE attack.incident = event.incident) >= ? "
    "FROM event WHERE kind = ? AND typeof(at) = 'real' ORDER BY at DESC LIMIT ?"
)
_INSTALLED = "SELECT DISTINCT subject FROM event WHERE kind = ? AND at BETWEEN ? AND ? ORDER BY at"


def past_attacks(origin: Origin, directory: Path = SESSION_DIRECTORY) -> tuple[PastAttack, ...]:
    """Return the last attacks that sessions of these interfaces stored, the latest first, each once."""
    found: list[PastAttack] = []
    for path in session_paths(directory)[-_PAST_SESSIONS:]:
        with suppress(FwtopError), reading(path, whole=False) as database:
            info = _info(database, path)
            if (info.interfaces, info.netns) == (origin.interfaces, origin.netns):
                found += _ended(database)
    found.sort(key=lambda one: -one.ended)
    kept: list[PastAttack] = []
    for one in found:  # a screen and a recorder that run beside each other both store it
        if not any(one.kind == other.kind and one.ended >= other.began for other in kept):
            kept.append(one)
    return tuple(kept[:_PAST_ATTACKS])


def _ended(database: sqlite3.Connection) -> Iterator[PastAttack]:
    wanted = STOPPED, EventKind.ATTACK_ENDED, _PAST_ATTACKS
    for began, ended, kind, text, other in database.execute(_ENDED, wanted):
        rows = database.execute(_INSTALLED, (EventKind.RULE_APPLIED, began, ended)).fetchall()
        rules, told = tuple(safe_text(name) for (name,) in rows), safe_text(text, limit=400)
        yield PastAttack(_number(began, ended), ended, safe_text(kind), told, rules, bool(other))


def load_session(path: Path) -> SessionRecord:
    """Read a session; its snapshots are read on demand. Raises FwtopError."""
    with reading(path) as database:
        database.execute("BEGIN")  # a consistent view of a running session
        info = _info(database, path)
        ticks = database.execute(f"SELECT {_TICK_COLUMNS} FROM tick ORDER BY at, n")
        events = database.execute("SELECT at, kind, subject, text, incident FROM event ORDER BY n")
        attacks = database.execute(
            "SELECT at, kind, pps, share, confidence, coalesce(peak_pps, pps), target, mine_share, "
            "other_share, kernel_share, incident FROM attack ORDER BY at, n"
        )
        rule_ticks = database.execute(
            "SELECT at, rule_id, state, packets, bytes, pps FROM rule_tick ORDER BY at, n"
        )
        return SessionRecord(
            info,
            tuple(Tick(*row) for row in ticks),
            tuple(stored_event(row) for row in events if row[1] in _EVENT_KINDS),
            tuple(AttackTick(*row) for row in attacks),
            tuple(RuleTick(*row) for row in rule_ticks),
            tuple(_rules(database)),
            tuple(stored_evidence(database)),
            tuple(stored_packets(database)),
            lambda limit: _picked(path, limit),
        )


def replay(path: Path) -> Generator[Snapshot, None, None]:
    """Yield a session's snapshots in order, at the resolution that is stored.

    Each says that it comes from a session; its time is `started + seconds`. Of a session that
    is still running, what is there when the end is reached. Raises FwtopError when it can't be read.
    """
    with reading(path) as database:
        after = 0
        while True:
            # Short transactions: a long one would make the writer's WAL grow.
            query = "SELECT n, data FROM snapshot WHERE n > ? ORDER BY n LIMIT ?"
            rows = database.execute(query, (after, _CHUNK)).fetchall()
            if not rows:
                return
            yield from decoded(path, (row[1] for row in rows))
            after = rows[-1][0]


def _picked(path: Path, limit: int) -> Iterator[Snapshot]:
    with reading(path, whole=False) as database:
        every = database.execute("SELECT n, pinned FROM snapshot ORDER BY n").fetchall()
        step = max(len(every) / max(limit, 1), 1.0)
        chosen, due = [], 0.0
        for place, (row_id, pinned) in enumerate(every):
            if pinned or place >= due or place == len(every) - 1:
                chosen.append(row_id)
            if place >= due:
                due += step
        for row_id in chosen:
            row = database.execute("SELECT data FROM snapshot WHERE n = ?", (row_id,)).fetchone()
            yield from decoded(path, (row[0],) if row else ())


def decoded(path: Path, blobs: Iterable[bytes]) -> Iterator[Snapshot]:
    """Decode stored snapshots, each said to come from this session; skip damaged ones."""
    for blob in blobs:
        try:
            snapshot = decode_value(Snapshot, blob)
        except (ValueError, TypeError):
            continue
        origin = Origin("session", snapshot.origin.interfaces, snapshot.origin.netns, safe_text(path.stem))
        yield replace(snapshot, origin=origin)


def _info(database: sqlite3.Connection, path: Path) -> SessionInfo:
    meta = dict(database.execute("SELECT name, value FROM meta").fetchall())
    first, last, peak = database.execute(
        "SELECT min(at), max(at), max(coalesce(peak_pps, pps)) FROM tick"
    ).fetchone()
    began = "SELECT subject FROM event WHERE kind = ? GROUP BY subject ORDER BY min(n)"
    kinds = tuple(safe_text(row[0]) for row in database.execute(began, (EventKind.ATTACK_BEGAN.value,)))
    rules = database.execute("SELECT count(*) FROM rule").fetchone()[0]
    running = is_running(path)
    started = _number(meta.get("started"), first)
    netns = meta.get("netns")
    return SessionInfo(
        id=safe_text(path.stem),
        path=path,
        host=safe_text(meta.get("host") or ""),
        interfaces=tuple(safe_text(name) for name in (meta.get("interfaces") or "").split("\n") if name),
        netns=safe_text(netns) if netns else None,
        version=safe_text(meta.get("version") or ""),
        started=started,
        ended=time.time() if running else _number(last, started),
        state="running" if running else "clean" if "ended" in meta else "crashed",
        peak_pps=_number(peak, 0.0),
        attacks=kinds,
        rules=int(rules),
        size_bytes=size_bytes(path),
        geoip=safe_text(meta.get("geoip") or "", limit=800),
    )


def _damaged(path: Path) -> SessionInfo:
    size = size_bytes(path)
    return SessionInfo(safe_text(path.stem), path, "", (), None, "", 0.0, 0.0, "damaged", 0.0, (), 0, size)


def stored_event(row: tuple[float, str, str, str, int]) -> Event:
    """Make an event of its row, whose texts may be anything."""
    return Event(row[0], EventKind(row[1]), safe_text(row[2]), safe_text(row[3], limit=400), int(row[4] or 0))


def _rules(database: sqlite3.Connection) -> Iterator[Rule]:
    for (data,) in database.execute("SELECT data FROM rule ORDER BY CAST(id AS INTEGER), id"):
        try:
            yield decode_value(Rule, data)
        except (ValueError, TypeError):
            continue


def _number(value: object, otherwise: float | None) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return otherwise or 0.0


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
        query = f"SELECT data FROM snapshot WHERE at BETWEEN 0 AND ? ORDER BY at DESC LIMIT {_DAMAGED}"
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
            "SELECT at, kind, subject, text, incident FROM event WHERE at BETWEEN 0 AND ? AND kind IN "
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
            "SELECT at, pps, bps, dropped_pps, accepted_pps, mine_pps, other_pps, tcp_handshakes_per_s, "
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
