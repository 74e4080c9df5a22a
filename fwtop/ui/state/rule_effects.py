"""The machine's load before each rule and now, so that the screen shows what a rule changed."""

from __future__ import annotations

from msgspec import Struct, field

from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.snapshot import Snapshot


class MachineFigures(Struct, frozen=True):
    """Load figures of one snapshot: rates in packets per second, shares 0 to 1."""

    arrived_pps: float
    delivered_pps: float
    other_drops_pps: float  # dropped further down, or by others' rules
    conntrack_fill: float | None
    softirq_share: float | None
    tcp: TcpService | None


def machine_figures(snapshot: Snapshot) -> MachineFigures:
    """Extract the load figures of a snapshot."""
    ledger, conntrack = snapshot.tables.ledger, snapshot.conntrack
    counted = [row for row in ledger if row.layer not in ("delivered", "unexplained")]
    return MachineFigures(
        snapshot.tables.totals.pps,
        sum(row.pps for row in ledger if row.layer == "delivered"),
        sum(row.pps for row in counted if not row.rule),
        conntrack.fill if conntrack is not None and conntrack.max else None,
        snapshot.softirq_share,
        snapshot.tcp,
    )


_BEFORE_SECONDS = 10.0  # figures older than that at a rule's installation aren't those before it


class RuleEffects(Struct):
    """For each active rule, the load figures of the last snapshot without it."""

    before: dict[str, MachineFigures] = field(default_factory=dict)
    now: MachineFigures | None = None
    at: float = 0.0  # the end of the window that `now` is of
    _known: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> None:
        """Record a snapshot's figures; rules active in the first snapshot have no "before".

        Nor have those that were installed long after the last one: a pause, or a jump in a recording.
        """
        rules = {item.rule.id: item.rule for item in snapshot.mitigations if item.state in ACTIVE_STATES}
        active = frozenset(rules)
        if self.now is not None:
            for rule_id in active - self._known:
                if rules[rule_id].created - self.at <= _BEFORE_SECONDS:
                    self.before[rule_id] = self.now
        for rule_id in self.before.keys() - active:
            del self.before[rule_id]
        self._known = active
        self.now, self.at = machine_figures(snapshot), snapshot.started + snapshot.seconds
