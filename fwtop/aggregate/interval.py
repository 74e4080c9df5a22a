"""Exact counts of several intervals added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fwtop.model.counters import ConntrackSample, Counters, DropCount, RuleCount


def add_counters(parts: list[Counters]) -> Counters:
    """Return the counters of intervals that follow each other; levels are the last ones."""
    if len(parts) == 1:
        return parts[0]
    accepted = [part for part in parts if part.accepted_packets is not None]
    return replace(
        parts[-1],
        seconds=sum(part.seconds for part in parts),
        arrived_packets=sum(part.arrived_packets for part in parts),
        arrived_bytes=sum(part.arrived_bytes for part in parts),
        accepted_packets=sum(part.accepted_packets or 0 for part in accepted) if accepted else None,
        accepted_bytes=sum(part.accepted_bytes or 0 for part in accepted) if accepted else None,
        protocols=_add_protocols(parts),
        drops=_add_drops(drop for part in parts for drop in part.drops),
        rules=_add_rules(rule for part in parts for rule in part.rules),
        conntrack=_add_conntrack([(part.seconds, part.conntrack) for part in parts if part.conntrack]),
        records_lost=sum(part.records_lost for part in parts),
        softirq_share=_mean([part for part in parts if part.softirq_share is not None]),
        watched=_watched(parts),
    )


def _watched(parts: list[Counters]) -> float:
    """Return the share of all packets that was counted."""
    arrived = sum(part.arrived_packets for part in parts)
    counted = sum(part.arrived_packets * part.watched for part in parts)
    return counted / arrived if arrived else parts[-1].watched


def _add_protocols(parts: list[Counters]) -> dict[str, tuple[int, int]]:
    out: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (packets, size) in part.protocols.items():
            before = out.get(name, (0, 0))
            out[name] = (before[0] + packets, before[1] + size)
    return out


def _add_drops(drops: Iterable[DropCount]) -> tuple[DropCount, ...]:
    out: dict[tuple[str, str, str | None, bool], DropCount] = {}
    for drop in drops:
        key = (drop.layer, drop.reason, drop.rule, drop.before_delivery)
        before = out.get(key, replace(drop, packets=0, bytes=0))
        out[key] = replace(drop, packets=before.packets + drop.packets, bytes=before.bytes + drop.bytes)
    return tuple(out.values())


def _add_rules(rules: Iterable[RuleCount]) -> tuple[RuleCount, ...]:
    out: dict[str, RuleCount] = {}
    for rule in rules:
        before = out.get(rule.rule_id, RuleCount(rule.rule_id, 0, 0))
        out[rule.rule_id] = RuleCount(rule.rule_id, before.packets + rule.packets, before.bytes + rule.bytes)
    return tuple(out.values())


def _add_conntrack(timed: list[tuple[float, ConntrackSample]]) -> ConntrackSample | None:
    """Add samples, each with the seconds of its interval: the last one may be a moment without packets."""
    if not timed:
        return None
    samples = [sample for _, sample in timed]
    seconds = sum(length for length, _ in timed)
    new = sum(length * sample.new_per_s for length, sample in timed)
    return replace(
        samples[-1],
        new_per_s=new / seconds if seconds > 0 else samples[-1].new_per_s,
        insert_failed=sum(sample.insert_failed for sample in samples),
        drop=sum(sample.drop for sample in samples),
        early_drop=sum(sample.early_drop for sample in samples),
    )


def _mean(parts: list[Counters]) -> float | None:
    seconds = sum(part.seconds for part in parts)
    if not parts or seconds <= 0:
        return parts[-1].softirq_share if parts else None
    return sum((part.softirq_share or 0.0) * part.seconds for part in parts) / seconds
