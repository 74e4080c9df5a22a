"""The fate of packets: arrived = dropped (by layer, reason and rule) + delivered + unexplained."""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import Match
from fwtop.model.traffic.counters import NETFILTER_DROP, Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import U16, Fragment, Hook, Mask, PacketBatch
from fwtop.model.traffic.protocols import WITH_PORTS
from fwtop.model.traffic.session import end_of
from fwtop.model.traffic.snapshot import LedgerRow

_LEAST_SAMPLES = 20
_LEAST_SHARE = 0.5
_READ_ROWS = 4_096  # newest samples per drop location: shares to ±1.6 percentage points


def with_traffic(
    rows: list[LedgerRow], drops: list[DropCount], dropped: PacketBatch, accepted: PacketBatch
) -> list[LedgerRow]:
    """Add to each row of drops (one per DropCount, in order) and to "delivered" its dominant traffic.

    Where fwtop rules and others share a drop reason and no sample says which of them dropped it, the
    dominant traffic is left out.
    """
    shared = {drop.code for drop in drops if drop.rule is not None}
    out = []
    for row, drop in zip(rows, [*drops, *[None] * (len(rows) - len(drops))], strict=True):
        samples = accepted if row.layer == "delivered" else None
        if drop is not None and drop.code is not None:
            same = dropped.reason == drop.code
            if drop.code not in shared or bool(dropped.rule[same].any()):
                rows_of = np.flatnonzero(same & (dropped.rule == number_of(drop.rule)))
                samples = dropped.select(rows_of[-_READ_ROWS:])
        found = dominant(samples) if samples is not None else None
        out.append(row if found is None else replace(row, mostly=found[0], mostly_share=found[1]))
    return out


def dominant(samples: PacketBatch) -> tuple[Match, float] | None:
    """Return the condition that at least half of the packets meet and their share; None for a mixture.

    A port takes precedence over a protocol, and the more common port over the other.
    """
    samples = samples.select(slice(-_READ_ROWS, None))
    whole = float(samples.weight.sum())
    if len(samples) < _LEAST_SAMPLES or whole <= 0:
        return None
    later = samples.fragment == Fragment.LATER
    ported = np.isin(samples.protocol, list(WITH_PORTS)) & ~later
    to_port = _commonest(samples, samples.dport, ported)
    from_port = _commonest(samples, samples.sport, ported)
    found = [
        (Match(protocol=to_port[0], dport=to_port[1]), to_port[2]),
        (Match(protocol=from_port[0], sport=from_port[1]), from_port[2]),
    ]
    found.sort(key=lambda item: -item[1])
    fragments = float(samples.weight[samples.fragment != Fragment.NONE].sum())
    found.append((Match(fragment=True), fragments))
    protocol, _, weight = _commonest(samples, np.zeros(len(samples), np.uint16), samples.family > 0)
    found.append((Match(protocol=protocol), weight))
    return next(((match, weight / whole) for match, weight in found if weight >= _LEAST_SHARE * whole), None)


def _commonest(samples: PacketBatch, port: U16, rows: Mask) -> tuple[int, int, float]:
    """Return protocol and port of greatest weight among the rows, and that weight; port 0: none."""
    keys = samples.protocol[rows].astype(np.int64) << 16 | port[rows]
    if not len(keys):
        return 0, 0, 0.0
    unique, place = np.unique(keys, return_inverse=True)
    weights = np.bincount(place, samples.weight[rows])
    best = int(weights.argmax())
    return int(unique[best]) >> 16, int(unique[best]) & 0xFFFF, float(weights[best])


FOREIGN = "foreign"  # netfilter drops that no fwtop rule accounts for
_NETFILTER = "netfilter"


class Ledger(Struct, frozen=True):
    """The rows, and the totals of delivered and dropped packets.

    `unseen` of the dropped packets never reached the counter of arrivals: the NIC, its driver, a foreign XDP
    program or a full backlog dropped them. The rows include them.
    """

    rows: tuple[LedgerRow, ...]
    delivered: int
    dropped: int
    unseen: int = 0
    unseen_bytes: int = 0  # as far as they were counted


def balance(counters: Counters, dropped: PacketBatch, accepted: PacketBatch) -> Ledger:
    """Balance the ledger of an interval; its samples tell what traffic ended where.

    Samples carry the rule that dropped them. Where none does, `counters.rules` are attributed to netfilter's
    drops, so they must be of rules that drop there (or of XDP rules, whose drops carry their rule already).
    """
    counters = _fitted(counters)
    drops = attributed(counters, dropped)
    lost = sum(drop.packets for drop in drops)
    # Dropped before the counter of arrivals, so not part of it
    before = [drop for drop in drops if is_before_arrival(drop)]
    unseen = sum(drop.packets for drop in before)
    late = sum(drop.packets for drop in drops if not drop.before_delivery)
    left = counters.arrived_packets - (lost - unseen - late)
    rows = [
        LedgerRow(drop.layer, drop.reason, drop.packets, 0.0, drop.rule, filtered=drop.filtered)
        for drop in drops
    ]
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


_ERROR = 0.05  # of estimates, at most


def _fitted(counters: Counters) -> Counters:
    """Scale down what is estimated where that adds up to some percent more than arrived.

    Where only a part of the time is observed, what arrived is counted by the interfaces all the time, and so
    is what rules dropped in the driver. Other ends of packets are scaled up from windows, which see the end
    and not the arrival of those that are on their way when a window begins.
    """
    drops = [drop for drop in counters.drops if drop.before_delivery and not is_before_arrival(drop)]
    accepted = counters.accepted_packets or 0
    estimated = accepted + sum(drop.packets for drop in drops if drop.rule is None)
    excess = accepted + sum(drop.packets for drop in drops) - counters.arrived_packets
    if counters.accepted_packets is None or counters.watched >= 1 or not 0 < excess <= _ERROR * estimated:
        return counters
    part = 1 - excess / estimated
    fitted = tuple(
        drop
        if drop.rule is not None or is_before_arrival(drop)
        else replace(
            drop,
            packets=int(drop.packets * part),
            bytes=int(drop.bytes * part),
            filtered=int(drop.filtered * part),
        )
        for drop in counters.drops
    )
    return replace(counters, accepted_packets=int(accepted * part), drops=fitted)


def recorded(packets: int, seconds: float) -> Ledger:
    """Return the ledger of a capture, which doesn't record the fate of its packets."""
    pps = packets / seconds if seconds > 0 else 0.0
    return Ledger((LedgerRow("capture", "recorded", packets, pps),), 0, 0)


def _order(row: LedgerRow) -> tuple[bool, bool, int]:
    return row.layer == "unexplained", row.layer == "delivered", -row.packets


def is_before_arrival(drop: DropCount) -> bool:
    """Check for drops before the counter of arrivals; fwtop's own XDP program counts its packets."""
    return drop.layer in ("nic", "backlog") or (drop.layer == "xdp" and drop.rule is None)


def number_of(rule: str | None) -> int:
    """Return the number by which samples name a rule; 0: none of fwtop's."""
    return int(rule) if rule is not None and rule.isdigit() else 0


def attributed(counters: Counters, dropped: PacketBatch) -> list[DropCount]:
    """Attribute netfilter drops to the rules that made them, and the packets that a SYN proxy answered."""
    out: list[DropCount] = []
    waiting = tuple(rule for rule in counters.rules if rule.early)
    for drop in counters.drops:
        parts = [drop]
        if (drop.layer, drop.reason, drop.rule) == (_NETFILTER, NETFILTER_DROP, None):
            shares = _sampled_shares(drop, dropped)
            error = _sampling_error(drop, dropped, counters.seconds)
            parts = (
                _split(drop, shares, counters, error) if shares else _counted_split(drop, waiting, counters)
            )
            waiting = ()
        out += parts
    return [*out, *_answered(counters, out)]


def _answered(counters: Counters, drops: list[DropCount]) -> list[DropCount]:
    """Return what SYN proxies answered: packets that were neither dropped nor accepted.

    Their rules' counters, read about once a second, only say whose they are; they count dropped packets, too.
    """
    if counters.accepted_packets is None:
        return []
    ended = sum(drop.packets for drop in drops if drop.before_delivery and not is_before_arrival(drop))
    left = counters.arrived_packets - ended - counters.accepted_packets
    dropped = Counter[str | None]()
    for drop in drops:
        dropped[drop.rule] += drop.packets
    answers = {rule: rule.packets - dropped[rule.rule_id] for rule in counters.rules if rule.answers}
    answers = {rule: packets for rule, packets in answers.items() if packets > 0}
    parts = ((rule, left * packets // sum(answers.values())) for rule, packets in answers.items())
    return [DropCount(_NETFILTER, "SYNPROXY", part, rule=rule.rule_id) for rule, part in parts if part > 0]


def _sampled_shares(drop: DropCount, dropped: PacketBatch) -> dict[int, float]:
    """Return the share of each rule among the samples with the drop's reason; empty if none has a rule."""
    same = dropped.reason == drop.code
    numbers, weight = dropped.rule[same], dropped.weight[same]
    whole = float(weight.sum())
    if drop.code is None or whole <= 0 or not numbers.any():
        return {}
    rules = np.unique(numbers[numbers != 0])
    return {int(rule): float(weight[numbers == rule].sum()) / whole for rule in rules}


_APART_SECONDS = 0.01  # between reading samples and counters: even where each packet is sampled, they differ


def _sampling_error(drop: DropCount, dropped: PacketBatch, seconds: float) -> float:
    """Return by how many packets samples and counters may differ though they are of the same rules.

    That is three standard deviations of what the samples stand for, and what came between the two readings.
    """
    weight = dropped.weight[dropped.reason == drop.code]
    apart = drop.packets * min(_APART_SECONDS / seconds, 1.0) if seconds > 0 else 0.0
    return apart + 3 * float(np.sqrt(np.maximum(weight * (weight - 1), 0).sum()))


def _split(drop: DropCount, shares: dict[int, float], counters: Counters, error: float) -> list[DropCount]:
    """Divide drops by the shares of rules; the rest is foreign.

    Rules of fwtop drop before routing, and how many were dropped there is counted: where the samples can't
    tell the difference, the rules dropped exactly those. Only a SYN proxy drops behind it.
    """
    # Conntrack's drops have the same reason, so the samples are theirs, too
    whole = drop.packets + sum(other.packets for other in counters.drops if other.layer == "conntrack")
    proxies = {number_of(rule.rule_id) for rule in counters.rules if not rule.early}
    early, late = drop.packets - drop.filtered, drop.filtered
    sampled = sum(share for rule, share in shares.items() if rule not in proxies) * whole
    factor = early / sampled if sampled and abs(sampled - early) <= error else 1.0
    out, left = [], drop.packets
    for rule in sorted(shares, key=proxies.__contains__):
        proxied = rule in proxies
        taken = min(round(shares[rule] * whole * (1.0 if proxied else factor)), late if proxied else left)
        late -= taken if proxied else 0
        left -= taken
        size = drop.bytes * taken // drop.packets if drop.packets else 0
        if taken:
            out.append(replace(drop, packets=taken, bytes=size, rule=str(rule)))
    return _placed([*out, *_rest(drop, left)], drop)


def _counted_split(drop: DropCount, rules: tuple[RuleCount, ...], counters: Counters) -> list[DropCount]:
    """Divide drops by the rules' own counters, which count a fragmented datagram once."""
    carried = {other.rule for other in counters.drops if other.rule is not None}
    out, left = [], drop.packets
    for rule in rules:
        taken = 0 if rule.rule_id in carried else min(rule.packets, left)
        left -= taken
        if taken:
            out.append(replace(drop, packets=taken, bytes=rule.bytes, rule=rule.rule_id))
    return _placed([*out, *_rest(drop, left)], drop)


def _placed(parts: list[DropCount], drop: DropCount) -> list[DropCount]:
    """Divide the drops behind routing, too: fwtop's rules act before it."""
    out, early = [], drop.packets - drop.filtered
    for part in parts:
        before = min(part.packets, early)
        early -= before
        out.append(replace(part, filtered=part.packets - before))
    return out


def _rest(drop: DropCount, left: int) -> list[DropCount]:
    reason = f"{drop.reason} ({FOREIGN})" if left < drop.packets else drop.reason
    return [replace(drop, reason=reason, packets=left)] if left else []


class RunningTotals:
    """Packets since the observation began, by what became of them: windows overlap, and don't add up."""

    def __init__(self) -> None:
        self.packets = 0
        self.bytes = 0
        self.samples = 0
        self.lost = 0  # samples
        self.ends = {"mine": 0, "other": 0, "kernel": 0, "reaches": 0}

    def add(self, batch: PacketBatch, counters: Counters) -> None:
        """Add one poll; its samples tell which rules dropped packets."""
        self.packets += counters.arrived_packets
        self.bytes += counters.arrived_bytes
        self.samples += len(batch)
        self.lost += counters.records_lost
        left, late = counters.arrived_packets, 0
        for drop in attributed(counters, batch.select(np.flatnonzero(batch.hook == Hook.DROP))):
            self.ends[end_of(drop)] += drop.packets
            if is_before_arrival(drop):  # neither counted as arrived so far nor part of what is left
                self.packets += drop.packets
                self.bytes += drop.bytes
            else:
                left -= drop.packets
            late += 0 if drop.before_delivery else drop.packets
        accepted = counters.accepted_packets
        self.ends["reaches"] += max(left if accepted is None else accepted - late, 0)
