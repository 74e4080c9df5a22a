"""Reading stored sessions: the list, a whole one for a report, its snapshots for a replay."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import (
    AttackTick,
    Event,
    EventKind,
    RuleTick,
    SessionInfo,
    SessionRecord,
    Tick,
)
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.store.codec import decode_value
from fwtop.store.directory import SESSION_DIRECTORY, is_running, session_paths, size_bytes
from fwtop.store.evidence import stored_evidence, stored_packets
from fwtop.store.schema import reading

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


def load_session(path: Path) -> SessionRecord:
    """Read a session; its snapshots are read on demand. Raises FwtopError."""
    with reading(path) as database:
        database.execute("BEGIN")  # a consistent view of a running session
        info = _info(database, path)
        ticks = database.execute(f"SELECT {_TICK_COLUMNS} FROM tick ORDER BY at, n")  # noqa: S608
        events = database.execute("SELECT at, kind, subject, text FROM event ORDER BY n")
        attacks = database.execute(
            "SELECT at, kind, pps, share, confidence, coalesce(peak_pps, pps), target, mine_share, "
            "other_share, kernel_share FROM attack ORDER BY at, n"
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


def stored_event(row: tuple[float, str, str, str]) -> Event:
    """Make an event of its row, whose texts may be anything."""
    return Event(row[0], EventKind(row[1]), safe_text(row[2]), safe_text(row[3], limit=400))


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
