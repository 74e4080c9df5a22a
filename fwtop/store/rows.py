"""The rows that a snapshot leaves in the time series of a session, and those of its events and rules."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.flow import Flow, flow_of
from fwtop.model.traffic.session import Event
from fwtop.model.traffic.snapshot import Attack, Snapshot

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
        at,
        totals.pps,
        totals.bps,
        totals.dropped / length,
        totals.accepted / length,
        sampling.one_in,
        sampling.lost / length,
        *table,
        snapshot.softirq_share,
        *service,
        flow.mine,
        flow.other,
        flow.kernel,
        seconds,
    )
    database.execute(_INSERT_TICK, row)
    database.executemany(
        "INSERT INTO attack(at, kind, target, pps, share, confidence, mine_share, other_share, "
        "kernel_share) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(at, *_attack(attack)) for attack in snapshot.judgement.attacks],
    )
    insert_rule_ticks(database, ((at, status) for status in snapshot.mitigations))


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


def _attack(attack: Attack) -> tuple[object, ...]:
    shares = (attack.mine_share, attack.other_share, attack.kernel_share)
    return attack.kind, attack.target, attack.pps, attack.share, attack.confidence, *shares
