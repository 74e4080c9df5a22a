"""What changed for the machine after a rule: the figures before it went in against those of now."""

from __future__ import annotations

from dataclasses import dataclass, field

from fwtop.model.counters import TcpService
from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Machine:
    """How the machine fares in one snapshot. Rates are packets a second; shares are 0 to 1."""

    arrived_pps: float
    delivered_pps: float
    other_drops_pps: float  # dropped further down, or by others' rules
    conntrack_fill: float | None
    softirq_share: float | None
    tcp: TcpService | None


def machine_of(snapshot: Snapshot) -> Machine:
    """Read the figures off a snapshot."""
    ledger, conntrack = snapshot.tables.ledger, snapshot.conntrack
    counted = [row for row in ledger if row.layer not in ("delivered", "unexplained")]
    return Machine(
        snapshot.tables.totals.pps,
        sum(row.pps for row in ledger if row.layer == "delivered"),
        sum(row.pps for row in counted if not row.rule),
        conntrack.fill if conntrack is not None and conntrack.max else None,
        snapshot.softirq_share,
        snapshot.tcp,
    )


@dataclass(slots=True)
class Effects:
    """Remembers for each active rule the figures of the last snapshot without it."""

    before: dict[str, Machine] = field(default_factory=dict)
    now: Machine | None = None
    _known: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> None:
        """Note the figures; rules that were there at the first snapshot have no before."""
        active = frozenset(item.rule.id for item in snapshot.mitigations if item.state in ACTIVE_STATES)
        if self.now is not None:
            for rule_id in active - self._known:
                self.before[rule_id] = self.now
        for rule_id in self.before.keys() - active:
            del self.before[rule_id]
        self._known = active
        self.now = machine_of(snapshot)
