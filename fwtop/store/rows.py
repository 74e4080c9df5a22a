"""The tables of a session's database, how it is opened for reading, and its rows."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import AttackEvidence, Event, Flow, SamplePacket, flow_of
from fwtop.model.traffic.snapshot import Incident, PartTraffic, Snapshot
from fwtop.store.database import Format, check_pages, connect, decode_value, encode_value
from fwtop.store.thinning import halve_rows

_INSERT_TICK = (
    "INSERT INTO tick(at, pps, bps, dropped_pps, accepted_pps, one_in, lost_per_s, conntrack, conntrack_max, "
    "conntrack_new_per_s, softirq_share, tcp_handshakes_per_s, tcp_acknowledged_per_s, mine_pps, other_pps, "
    "kernel_pps, seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def insert_series(database: sqlite3.Connection, snapshot: Snapshot, seconds: float | None = None) -> None:
    """Add a point to each series.

    It speaks for the time since the one before it, unless `seconds` says for how long: after a gap.
    """
    at = snapshot.at
    totals, sampling, conntrack = snapshot.tables.totals, snapshot.tables.sampling, snapshot.conntrack
    length = max(snapshot.seconds, 1e-3)
    tcp = snapshot.tcp
    service = (tcp.clients_per_s, tcp.acknowledged_per_s) if tcp else (None, None)
    table = (conntrack.count, conntrack.max, conntrack.new_per_s) if conntrack else (None, None, None)
    flow = flow_of(snapshot) or Flow()
    row = (
        at, totals.pps, totals.bps, totals.dropped / length, totals.accepted / length, sampling.one_in,
        sampling.lost / length, *table, snapshot.softirq_share, *service, flow.mine, flow.other, flow.kernel,
        seconds,
    )  # fmt: skip
    database.execute(_INSERT_TICK, row)
    database.executemany(
        "INSERT INTO attack(at, incident, kind, target, pps, share, confidence, mine_share, other_share, "
        "kernel_share) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (at, one.id, one.kind, one.target, one.pps, one.share, one.confidence, *_dropped(one))
            for one in snapshot.judgement.harmful
            if one.is_on
        ],
    )
    insert_rule_ticks(database, ((at, status) for status in snapshot.mitigations))


def _dropped(attack: Incident) -> tuple[float | None, ...]:
    return attack.mine_share, attack.other_share, attack.kernel_share


def insert_rule_ticks(database: sqlite3.Connection, ticks: Iterable[tuple[float, RuleStatus]]) -> None:
    """Add the counters of rules at some times."""
    database.executemany(
        "INSERT INTO rule_tick(at, rule_id, state, packets, bytes, pps) VALUES (?, ?, ?, ?, ?, ?)",
        [(at, item.rule.id, item.state.value, item.packets, item.bytes, item.pps) for at, item in ticks],
    )


def insert_events(database: sqlite3.Connection, events: Iterable[Event]) -> None:
    """Add events."""
    database.executemany(
        "INSERT INTO event(at, kind, subject, text, incident) VALUES (?, ?, ?, ?, ?)",
        [(event.at, event.kind.value, event.subject, event.text, event.incident) for event in events],
    )


MOST_TABLES, MOST_PACKETS = 48, 64  # of each incident
MOST_INCIDENTS = 64
_MOST_BYTES = 65_535


def insert_evidence(database: sqlite3.Connection, evidence: Iterable[AttackEvidence]) -> None:
    """Add evidence; an incident with too many rows loses every second one: the rest still spans its time.

    Of too many incidents the oldest lose theirs.
    """
    for item in evidence:
        row = (item.at, item.incident, item.kind, item.pps, encode_value(item.part))
        database.execute("INSERT INTO evidence(at, incident, kind, pps, data) VALUES (?, ?, ?, ?, ?)", row)
        database.executemany(
            "INSERT INTO packet(at, incident, kind, length, is_ethernet, data) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (one.at, item.incident, item.kind, one.length, one.is_ethernet, one.data)
                for one in item.packets
            ],
        )
        _halve(database, "evidence", item.incident, MOST_TABLES)
        _halve(database, "packet", item.incident, MOST_PACKETS)
        newest = "SELECT DISTINCT incident FROM evidence ORDER BY incident DESC LIMIT ?"
        for table in ("packet", "evidence"):
            database.execute(f"DELETE FROM {table} WHERE incident NOT IN ({newest})", (MOST_INCIDENTS,))


def halve_evidence(database: sqlite3.Connection) -> None:
    """Save space: of each incident every second row goes."""
    for number in _incidents(database):
        _halve(database, "evidence", number, 1)
        _halve(database, "packet", number, 1)


def _incidents(database: sqlite3.Connection) -> list[int]:
    return [row[0] for row in database.execute("SELECT DISTINCT incident FROM evidence ORDER BY incident")]


def _halve(database: sqlite3.Connection, table: str, incident: int, most: int) -> None:
    count = f"SELECT count(*) FROM {table} WHERE incident = ?"
    if database.execute(count, (incident,)).fetchone()[0] > most:
        halve_rows(database, table, "incident = ?", incident)


def stored_evidence(database: sqlite3.Connection) -> Iterator[AttackEvidence]:
    """Yield the tables in order; damaged ones are skipped."""
    for at, kind, pps, data, number in database.execute(
        "SELECT at, kind, pps, data, incident FROM evidence ORDER BY n"
    ):
        try:
            part = decode_value(PartTraffic, data)
            yield AttackEvidence(float(at), safe_text(kind), float(pps), part, incident=int(number))
        except (ValueError, TypeError):
            continue


def stored_packets(database: sqlite3.Connection) -> Iterator[SamplePacket]:
    """Yield the sample packets in order."""
    rows = database.execute("SELECT at, kind, length, is_ethernet, data, incident FROM packet ORDER BY n")
    for at, kind, length, is_ethernet, data, number in rows:
        if isinstance(data, bytes) and isinstance(at, float) and isinstance(number, int):
            captured = data[:_MOST_BYTES]
            most = max(min(int(length), _MOST_BYTES), len(captured))
            yield SamplePacket(at, safe_text(kind), most, bool(is_ethernet), captured, number)


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
