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
    service = (tcp.handshakes_per_s, tcp.acknowledged_per_s) if tcp else (None, None)
    table = (conntrack.count, conntrack.max, conntrack.new_per_s) if conntrack else (None, None, None)
    flow = flow_of(snapshot) or Flow()
    row = (
        at, totals.pps, totals.bps, totals.dropped / length, totals.accepted / length, sampling.one_in,
        sampling.lost / length, *table, snapshot.softirq_share, *service, flow.mine, flow.other, flow.kernel,
        seconds,
    )  # fmt: skip
    database.execute(_INSERT_TICK, row)
    database.executemany(
        "INSERT INTO attack(at, kind, target, pps, share, confidence, mine_share, other_share, "
        "kernel_share) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (at, one.kind, one.target, one.pps, one.share, one.confidence, *_dropped(one))
            for one in snapshot.judgement.harmful
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
        "INSERT INTO event(at, kind, subject, text) VALUES (?, ?, ?, ?)",
        [(event.at, event.kind.value, event.subject, event.text) for event in events],
    )


MOST_TABLES, MOST_PACKETS = 48, 64  # of each kind of attack
MOST_KINDS = 64
_MOST_BYTES = 65_535


def insert_evidence(database: sqlite3.Connection, evidence: Iterable[AttackEvidence]) -> None:
    """Add evidence; a kind with too many rows loses every second one: the rest still spans its time."""
    for item in evidence:
        kinds = {row[0] for row in database.execute("SELECT DISTINCT kind FROM evidence")}
        if item.kind not in kinds and len(kinds) >= MOST_KINDS:
            continue
        row = (item.at, item.kind, item.pps, encode_value(item.part))
        database.execute("INSERT INTO evidence(at, kind, pps, data) VALUES (?, ?, ?, ?)", row)
        database.executemany(
            "INSERT INTO packet(at, kind, length, is_ethernet, data) VALUES (?, ?, ?, ?, ?)",
            [(one.at, item.kind, one.length, one.is_ethernet, one.data) for one in item.packets],
        )
        _halve(database, "evidence", item.kind, MOST_TABLES)
        _halve(database, "packet", item.kind, MOST_PACKETS)


def halve_evidence(database: sqlite3.Connection) -> None:
    """Save space: of each kind every second row goes."""
    for kind in [row[0] for row in database.execute("SELECT DISTINCT kind FROM evidence")]:
        _halve(database, "evidence", kind, 1)
        _halve(database, "packet", kind, 1)


def _halve(database: sqlite3.Connection, table: str, kind: str, most: int) -> None:
    count = f"SELECT count(*) FROM {table} WHERE kind = ?"
    if database.execute(count, (kind,)).fetchone()[0] > most:
        halve_rows(database, table, "kind = ?", kind)


def stored_evidence(database: sqlite3.Connection) -> Iterator[AttackEvidence]:
    """Yield the tables in order; damaged ones are skipped."""
    for at, kind, pps, data in database.execute("SELECT at, kind, pps, data FROM evidence ORDER BY n"):
        try:
            yield AttackEvidence(float(at), safe_text(kind), float(pps), decode_value(PartTraffic, data))
        except (ValueError, TypeError):
            continue


def stored_packets(database: sqlite3.Connection) -> Iterator[SamplePacket]:
    """Yield the sample packets in order."""
    rows = database.execute("SELECT at, kind, length, is_ethernet, data FROM packet ORDER BY n")
    for at, kind, length, is_ethernet, data in rows:
        if isinstance(data, bytes) and isinstance(at, float):
            captured = data[:_MOST_BYTES]
            most = max(min(int(length), _MOST_BYTES), len(captured))
            yield SamplePacket(at, safe_text(kind), most, bool(is_ethernet), captured)
