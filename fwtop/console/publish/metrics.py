"""A snapshot in Prometheus's text format.

No label comes from packets: there are no addresses, names or payloads, so an attacker can't make series.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fwtop import __version__
from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.verdict import Badge, verdict_of
from fwtop.stats.ledger import RunningTotals

MAX_KINDS = 16
MAX_RULES = 64
_KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RULE_ID = re.compile(r"[0-9]{1,12}")
_FATES = {"mine": "my_rules", "other": "other_firewall", "kernel": "kernel", "reaches": "reaches"}


class _Families(Collector):
    def __init__(self, snapshot: Snapshot, totals: RunningTotals) -> None:
        self._snapshot = snapshot
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        yield from _traffic(self._totals)
        yield from _attacks(self._snapshot)
        yield from _state(self._snapshot)
        yield from _rules(self._snapshot)


def exposition(snapshot: Snapshot, totals: RunningTotals) -> bytes:
    """Return all metrics as text, docs/MONITORING.md."""
    return generate_latest(_Families(snapshot, totals))


def _traffic(totals: RunningTotals) -> Iterator[Metric]:
    yield CounterMetricFamily("fwtop_arrived_packets", "Packets that arrived.", value=totals.packets)
    yield CounterMetricFamily("fwtop_arrived_bytes", "Bytes that arrived.", value=totals.bytes)
    ends = CounterMetricFamily("fwtop_packets", "Packets by what became of them.", labels=["fate"])
    for end, fate in _FATES.items():
        ends.add_metric([fate], totals.ends[end])
    yield ends
    yield CounterMetricFamily("fwtop_samples", "Samples taken, of arrivals and drops.", value=totals.samples)
    yield CounterMetricFamily(
        "fwtop_samples_lost", "Samples that did not fit the buffers.", value=totals.lost
    )


def _attacks(snapshot: Snapshot) -> Iterator[Metric]:
    present = [attack for attack in snapshot.judgement.harmful if attack.ended is None]
    kinds: dict[str, list[Incident]] = {}
    for attack in present:
        kind = attack.kind if _KIND.fullmatch(attack.kind) else "other"
        fits = kind in kinds or len(kinds) < MAX_KINDS - 1
        kinds.setdefault(kind if fits else "other", []).append(attack)
    yield GaugeMetricFamily("fwtop_attacks", "Attacks now.", value=len(present))
    pps = GaugeMetricFamily("fwtop_attack_packets_per_second", "Attack packets, now.", labels=["kind"])
    reaching = GaugeMetricFamily(
        "fwtop_attack_reaching_packets_per_second", "Attack packets that reach services.", labels=["kind"]
    )
    confidence = GaugeMetricFamily("fwtop_attack_confidence", "0 to 1.", labels=["kind"])
    for kind, attacks in kinds.items():
        pps.add_metric([kind], sum(attack.pps for attack in attacks))
        reaching.add_metric([kind], sum(attack.pps * attack.reaching_share for attack in attacks))
        confidence.add_metric([kind], max(attack.confidence for attack in attacks))
    yield from (pps, reaching, confidence)


def _state(snapshot: Snapshot) -> Iterator[Metric]:
    verdict = GaugeMetricFamily("fwtop_verdict", "1: the header's badge.", labels=["state"])
    now = verdict_of(snapshot, snapshot.at).badge
    for badge in Badge:
        verdict.add_metric([badge.name.lower()], float(badge is now))
    yield verdict
    found: list[tuple[str, str, float | None]] = [
        ("watched_ratio", "Share of the packets that was counted.",
         snapshot.tables.sampling.watched),
        ("softirq_ratio", "Share of CPU time in softirq.", snapshot.softirq_share),
        ("guardian_up", "1 while the guardian answers.", float(not snapshot.guardian.startswith("lost"))),
        ("judged", "0 if the attacks are as of an earlier observation.", not snapshot.judgement.not_judged),
        ("last_observation_timestamp_seconds", "When.", snapshot.at),
    ]  # fmt: skip
    if (table := snapshot.conntrack) is not None:
        found += [
            ("conntrack_entries", "Entries of the connection table.", table.count),
            ("conntrack_limit", "Entries that the connection table holds.", table.max),
        ]
    if (tcp := snapshot.tcp) is not None:
        found += [
            ("established_connections", "TCP connections of clients.", tcp.established),
            ("handshakes_per_second", "TCP handshakes that clients complete.", tcp.handshakes_per_s),
            ("acknowledged_segments_per_second", "Segments that they acknowledge.", tcp.acknowledged_per_s),
        ]
    for name, meaning, value in found:
        if value is not None:
            yield GaugeMetricFamily(f"fwtop_{name}", meaning, value=value)
    build = GaugeMetricFamily("fwtop_build_info", "The version that runs.", labels=["version"])
    build.add_metric([__version__], 1)
    yield build


def _rules(snapshot: Snapshot) -> Iterator[Metric]:
    active = [
        status
        for status in snapshot.mitigations
        if status.state in ACTIVE_STATES and _RULE_ID.fullmatch(status.rule.id)
    ]
    yield GaugeMetricFamily("fwtop_rules", "Active rules.", value=len(active))
    labels = ["id", "kind"]
    packets = CounterMetricFamily("fwtop_rule_packets", "Packets that the rule matched.", labels=labels)
    pps = GaugeMetricFamily("fwtop_rule_packets_per_second", "Packets that it matches now.", labels=labels)
    acting = GaugeMetricFamily("fwtop_rule_in_effect", "0 if something keeps it from acting.", labels=labels)
    for status in sorted(active, key=lambda status: -status.pps)[:MAX_RULES]:
        values = [status.rule.id, status.rule.kind.value]
        packets.add_metric(values, status.packets)
        pps.add_metric(values, status.pps)
        acting.add_metric(values, float(status.acting))
    yield from (packets, pps, acting)
