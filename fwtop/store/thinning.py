"""How a session stays small: full resolution lately, ever fewer rows the further back."""

from __future__ import annotations

import sqlite3

PINNED_EVENT, PINNED_PEAK = 1, 2  # snapshots that thinning leaves
FULL_SECONDS = 600.0

# (older than so many seconds, one row per so many seconds), the youngest first
_SNAPSHOT_TIERS = ((FULL_SECONDS, 10.0), (7_200.0, 60.0), (86_400.0, 600.0))
_SERIES_TIERS = ((FULL_SECONDS, 1.0), (86_400.0, 10.0), (864_000.0, 60.0))
_SERIES = {"tick": "", "attack": ", kind", "rule_tick": ", rule_id"}


def thin(database: sqlite3.Connection, now: float) -> None:
    """Drop rows that are denser than their age allows; `now` is the last snapshot's time."""
    for older, spacing in _SNAPSHOT_TIERS:
        _thin_table(database, "snapshot", before=now - older, spacing=spacing, which="AND pinned = 0")
    for older, spacing in _SERIES_TIERS:
        for table, group in _SERIES.items():
            _thin_table(database, table, before=now - older, spacing=spacing, group=group)


def halve(database: sqlite3.Connection, before: float) -> None:
    """Drop every second row of what is older than `before`, the peak excepted."""
    for table in ("snapshot", *_SERIES):
        spare = f"AND pinned <> {PINNED_PEAK}" if table == "snapshot" else ""
        database.execute(
            f"DELETE FROM {table} WHERE n IN (SELECT n FROM (SELECT n, row_number() OVER (ORDER BY n) "  # noqa: S608
            f"AS place FROM {table} WHERE at < ? {spare}) WHERE place % 2 = 0)",
            (before,),
        )


def _thin_table(
    database: sqlite3.Connection,
    table: str,
    *,
    before: float,
    spacing: float,
    which: str = "",
    group: str = "",
) -> None:
    # Names and clauses come from this file's constants only. Of each slot the first row stays.
    database.execute(
        f"DELETE FROM {table} WHERE at < ?1 {which} AND n NOT IN "  # noqa: S608
        f"(SELECT min(n) FROM {table} WHERE at < ?1 {which} GROUP BY CAST(at / ?2 AS INTEGER){group})",
        (before, spacing),
    )
