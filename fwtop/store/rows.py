"""The rows that snapshots, events, rules and attacks' own packets leave in a session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import AttackEvidence, Event, Flow, SamplePacket, flow_of
from fwtop.model.traffic.snapshot import Incident, PartTraffic, Snapshot
from fwtop.store.database import decode_value, encode_value
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
