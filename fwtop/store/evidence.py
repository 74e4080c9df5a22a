"""What attacks' own packets were: tables and sample packets, few of each kind and spread over its time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from fwtop.model.text import safe_text
from fwtop.model.traffic.session import AttackEvidence, SamplePacket
from fwtop.model.traffic.snapshot import PartTraffic
from fwtop.store.codec import decode_value, encode_value
from fwtop.store.thinning import halve_rows

MOST_TABLES, MOST_PACKETS = 48, 64  # of each kind of attack
MOST_KINDS = 64
_MOST_BYTES = 65_535


def insert_evidence(database: sqlite3.Connection, evidence: Iterable[AttackEvidence]) -> None:
    """Add evidence; of what is too much of a kind, every second row goes, so that the rest spans its time."""
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
    count = f"SELECT count(*) FROM {table} WHERE kind = ?"  # noqa: S608 - a constant of this file
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
