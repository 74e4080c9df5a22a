"""Where packets ended: arrived = dropped by layer, reason and rule + delivered + unexplained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fwtop.aggregate.ledger_traffic import with_traffic
from fwtop.model.counters import Counters, DropCount
from fwtop.model.packets import PacketBatch
from fwtop.model.snapshot import LedgerRow

FOREIGN = "foreign"  # netfilter drops that no rule of fwtop's accounts for
_NETFILTER, _DROP = "netfilter", "NETFILTER_DROP"
_LAYERS = ("nic", "xdp", "tc", "backlog", "netfilter", "conntrack", "ip", "socket")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The rows, and what was delivered and dropped in all.

    `unseen` of the dropped packets never reached the counter of arrivals: the NIC, its driver, another's XDP
    program or a full backlog took them. They arrived all the same, so the rows add up to both.
    """

    rows: tuple[LedgerRow, ...]
    delivered: int
    dropped: int
    unseen: int = 0
    unseen_bytes: int = 0  # as far as anybody counted them


def balance(counters: Counters, dropped: PacketBatch, accepted: PacketBatch) -> Ledger:
    """Draw up the ledger of an interval, with the samples of the same interval to say what ended where.

    `counters.rules` are attributed to netfilter's drops, so they must be of rules that drop there (or
    of XDP rules, whose drops carry their rule already).
    """
    drops = _attributed(counters)
    lost = sum(drop.packets for drop in drops)
    # These came before the counter of arrivals saw the packet, so they explain none of it
    before = [drop for drop in drops if _is_before_arrival(drop)]
    unseen = sum(drop.packets for drop in before)
    late = sum(drop.packets for drop in drops if not drop.before_delivery)
    left = counters.arrived_packets - (lost - unseen - late)
    rows = [LedgerRow(drop.layer, drop.reason, drop.packets, 0.0, drop.rule) for drop in drops]
    if counters.accepted_packets is None:
        delivered = max(left - late, 0)
        rows.append(LedgerRow("delivered", "not dropped", delivered, 0.0))
    else:
        delivered = max(counters.accepted_packets - late, 0)
        rows.append(LedgerRow("delivered", "accepted", delivered, 0.0))
        rest = left - counters.accepted_packets
        if rest:
            reason = "neither dropped nor accepted" if rest > 0 else "more accepted and dropped than arrived"
            rows.append(LedgerRow("unexplained", reason, rest, 0.0))
    per_second = 1.0 / counters.seconds if counters.seconds > 0 else 0.0
    rows = [replace(row, pps=row.packets * per_second) for row in rows]
    rows = sorted(with_traffic(rows, drops, dropped, accepted), key=_order)
    return Ledger(tuple(rows), delivered, lost, unseen, sum(drop.bytes for drop in before))


def recorded(packets: int, seconds: float) -> Ledger:
    """Return the ledger of a capture: where its packets ended is not in it."""
    pps = packets / seconds if seconds > 0 else 0.0
    return Ledger((LedgerRow("capture", "recorded", packets, pps),), 0, 0)


def _order(row: LedgerRow) -> tuple[bool, bool, int]:
    return row.layer == "unexplained", row.layer == "delivered", -row.packets


def _is_before_arrival(drop: DropCount) -> bool:
    """Tell drops of packets that never reached the counters: fwtop's own XDP program does count."""
    return drop.layer in ("nic", "backlog") or (drop.layer == "xdp" and drop.rule is None)


def _attributed(counters: Counters) -> list[DropCount]:
    """Split netfilter's drops by the rules that counted them."""
    out: list[DropCount] = []
    carried = {drop.rule for drop in counters.drops if drop.rule is not None}
    waiting = [rule for rule in counters.rules if rule.rule_id not in carried and rule.packets > 0]
    for drop in counters.drops:
        left = drop.packets
        if (drop.layer, drop.reason, drop.rule) == (_NETFILTER, _DROP, None):
            for rule in waiting:
                taken = min(rule.packets, left)
                left -= taken
                if taken:
                    out.append(replace(drop, packets=taken, bytes=rule.bytes, rule=rule.rule_id))
            waiting = []
        if left:
            reason = f"{drop.reason} ({FOREIGN})" if left < drop.packets else drop.reason
            out.append(replace(drop, reason=reason, packets=left))
    return out
