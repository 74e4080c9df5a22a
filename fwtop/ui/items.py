"""What can be a row: values of the snapshot, and two made of it for the screen."""

from __future__ import annotations

from dataclasses import dataclass

from fwtop.model.counters import ConntrackSample
from fwtop.model.rule import RuleStatus
from fwtop.model.snapshot import LedgerRow, Payload, Port, Proposal, Snapshot, Source
from fwtop.ui.format import duration, number


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the connection-tracking table."""

    name: str
    value: str
    alarm: bool
    meaning: str


def conntrack_figures(sample: ConntrackSample | None) -> tuple[Figure, ...]:
    """List the table's figures with what they mean."""
    if sample is None or not sample.max:
        return ()
    left = sample.seconds_to_full
    to_full = "not growing" if left is None else "now" if left < 1 else f"in {duration(left)}"
    growth = "at the present growth" if left is not None else "as many connections end as begin"
    return (
        Figure(
            "tracked",
            f"{number(sample.count)} of {number(sample.max)}",
            sample.fill >= 0.8,
            "connections in the table; when it is full, new ones are dropped",
        ),
        Figure("fills up", to_full, left is not None and left < 300, growth),
        Figure(
            "new",
            f"{number(sample.new_per_s)}/s",
            False,
            "connections entered a second; a flood of forged sources enters one a packet",
        ),
        Figure(
            "insert failed",
            number(sample.insert_failed),
            sample.insert_failed > 0,
            "entries that lost a race or found their bucket full; their packets were dropped",
        ),
        Figure("dropped", number(sample.drop), sample.drop > 0, "packets dropped as the table was full"),
        Figure(
            "early drop",
            number(sample.early_drop),
            sample.early_drop > 0,
            "entries thrown out before their time to make room",
        ),
    )


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A row of the drop ledger with its part of all that arrived."""

    row: LedgerRow
    part: float


def ledger_lines(snapshot: Snapshot) -> tuple[LedgerLine, ...]:
    """Set each row of the ledger against what arrived."""
    arrived = max(snapshot.tables.totals.packets, 1)
    return tuple(LedgerLine(row, row.packets / arrived) for row in snapshot.tables.ledger)


Estimate = Source | Port | Payload  # what has a share
Item = Estimate | LedgerLine | Figure | RuleStatus | Proposal
