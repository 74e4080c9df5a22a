"""Figures of the connection table, and drops as shares of all packets."""

from __future__ import annotations

from msgspec import Struct

from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import LedgerRow, Snapshot
from fwtop.ui.drawing.format import about, duration, number, percent

CONNTRACK_ALARM = 0.8  # fill of the connection-tracking table from which it is no longer normal
FULL = 0.995  # of the connection-tracking table: new connections are dropped or evict others
_SOON_SECONDS = 300.0
UNEXPLAINED_SHARE = 0.001  # below it the difference between counters read at different times is noise


class Figure(Struct, frozen=True):
    """A figure of the connection-tracking table."""

    name: str
    value: str
    alarm: bool
    meaning: str


def conntrack_figures(sample: ConntrackSample | None) -> tuple[Figure, ...]:
    """List the table's figures with what they mean; counts are of the window."""
    if sample is None or not sample.max:
        return ()
    tracked = f"{number(sample.count)} of {number(sample.max)}"
    new = "connections entered a second; a flood of forged sources enters one a packet"
    failed = "packets that another of their connection was ahead of, or whose bucket was full"
    return (
        Figure(
            "tracked",
            tracked,
            sample.fill >= CONNTRACK_ALARM,
            "connections in the table; a full one drops new ones",
        ),
        _fills_up(sample),
        Figure("new", f"{number(sample.new_per_s)}/s", False, new),
        Figure("insert failed", number(sample.insert_failed), sample.insert_failed > 0, failed),
        Figure("dropped", number(sample.drop), sample.drop > 0, "packets dropped because the table was full"),
        Figure(
            "early drop", number(sample.early_drop), sample.early_drop > 0, "entries evicted to make room"
        ),
    )


def _fills_up(sample: ConntrackSample) -> Figure:
    left = sample.seconds_to_full
    if sample.fill >= FULL or (left is not None and left < 1):
        return Figure("fills up", "FULL", True, "new connections evict others or are dropped")
    normal = sample.seconds_to_fill(CONNTRACK_ALARM)
    if normal is not None:
        meaning = f"it drains: below {percent(CONNTRACK_ALARM)} then, at the present rate"
        return Figure("normal", f"in {about(normal)}", False, meaning)
    if left is None:
        return Figure("fills up", "not growing", False, "as many connections end as begin")
    return Figure("fills up", f"in {duration(left)}", left < _SOON_SECONDS, "at the present growth")


UNEXPLAINED = "unexplained"  # the layer of what is neither delivered nor dropped


def shown_ledger(snapshot: Snapshot) -> tuple[LedgerRow, ...]:
    """Return the rows of the ledger that are worth a line."""
    return tuple(
        row
        for row in snapshot.tables.ledger
        if row.layer != UNEXPLAINED or abs(share_of_all(row, snapshot)) >= UNEXPLAINED_SHARE
    )


def share_of_all(row: LedgerRow, snapshot: Snapshot) -> float:
    """Relate a row of the ledger to all packets."""
    return row.packets / max(snapshot.tables.totals.packets, 1)
