"""From a window to attacks: groups are cut, hypotheses compete, and what they claim is put together.

Answers of one service from its own port and from other ports are one attack. Two attacks of one kind at once
stay two: on two addresses, or on two ports by two tools. Floods of one kind are parted by what they hit, if
each hits one of a few targets. Ports alone don't part them, because one tool may hit several: the packets
must differ, too, or the senders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.attacks import HYPOTHESES
from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.engine.compete import entries_by_turn, resolve
from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.states import carpet_bombing, conntrack_exhaustion
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.traffic import UDP, Rows, weighted_top
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import U16, U64

_MOST_PARTS = 4
_LEAST = 0.15  # of the packets: the least part
_TOGETHER = 0.95
_APART = 0.5  # total variation distance of a header field; 0: the same distribution, 1: no value in common
_STRANGERS = 0.05  # of the sources in common, at most
_SENT_AGAIN = 2.0  # packets of each source, from which what sources have in common says something
_FIELDS = ("ip_length", "ttl", "tcp_window")


def find_attacks(context: AnalysisContext, hypotheses: Sequence[Hypothesis] = HYPOTHESES) -> list[Finding]:
    """Return the attacks of a window; the order of the hypotheses means nothing."""
    for about in entries_by_turn(tuple(hypotheses)).values():
        resolve(context, about)
    context.findings[:] = [part for one in _merged(context.findings) for part in _parts(context, one)]
    for state in (carpet_bombing, conntrack_exhaustion):
        context.findings.extend(state(context))
    return context.findings


def _merged(findings: list[Finding]) -> list[Finding]:
    """Return the findings, reflections off one service as one."""
    result: dict[str, Finding] = {}
    for finding in findings:
        first = result.get(finding.kind)
        if first is None or Trait.AMPLIFIED not in finding.traits:
            result[finding.kind if first is None else f"{finding.kind} {len(result)}"] = finding
            continue
        large, small = sorted((first, finding), key=lambda one: -len(one.rows))
        result[finding.kind] = replace(
            large,
            rows=np.sort(np.concatenate([large.rows, small.rows])),
            confidence=max(large.confidence, small.confidence),
            evidence=(large.evidence[0], f"also {small.evidence[0]}", *large.evidence[1:]),
            match=Match(protocol=UDP),
            dns_name=large.dns_name if large.dns_name == small.dns_name else None,
        )
    return list(result.values())


def _parts(context: AnalysisContext, finding: Finding) -> list[Finding]:
    """Return the attacks that a finding consists of."""
    if Trait.APART not in finding.traits:
        return [finding]
    traffic, rows = context.traffic, finding.rows
    address = _groups(context, rows, traffic.dest_key[rows])
    if len(address) > 1:
        return [_part(context, finding, one, context.features(one).target) for one in address]
    if traffic.later[rows].any():  # fragments have no ports
        return [finding]
    ports = _groups(context, rows, traffic.packets.dport[rows])
    if len(ports) > 1 and all(_differ(context, ports[0], other) for other in ports[1:]):
        return [
            _part(context, finding, one, f"port {context.features(one).top('dport').value}") for one in ports
        ]
    return [finding]


def _groups(context: AnalysisContext, rows: Rows, keys: U16 | U64) -> list[Rows]:
    """Group rows by the few keys that nearly all have; what is left belongs to the largest group."""
    weight = context.traffic.weight[rows]
    total = max(float(weight.sum()), 1e-9)
    large, sums = weighted_top(keys, weight, _LEAST * total)
    parts = [rows[keys == key] for key in large]
    few = 2 <= len(large) <= _MOST_PARTS and float((sums / total).sum()) >= _TOGETHER
    if not few or min(map(len, parts)) < context.config.min_samples:
        return [rows]
    return [rows[(keys == large[0]) | ~among(keys, large)], *parts[1:]]


def _differ(context: AnalysisContext, one: Rows, other: Rows) -> bool:
    """Check for two tools, or two groups of senders."""
    traffic = context.traffic
    for column in (getattr(traffic.packets, name) for name in _FIELDS):
        counts = [np.bincount(column[rows], minlength=65_536) / len(rows) for rows in (one, other)]
        if np.abs(counts[0] - counts[1]).sum() / 2 > _APART:
            return True
    mine, others = (distinct_values(traffic.source_key[rows]) for rows in (one, other))
    if min(len(one), len(other)) < _SENT_AGAIN * max(len(mine), len(others)):
        return False
    return int(among(mine, others).sum()) <= _STRANGERS * min(len(mine), len(others))


def _part(context: AnalysisContext, finding: Finding, rows: Rows, where: str) -> Finding:
    features = context.features(rows)
    sports, dports = features.top("sport"), features.top("dport")
    match = replace(
        finding.match,
        sport=sports.value if sports.share > 0.98 and sports.value else finding.match.sport,
        dport=dports.value if dports.share > 0.98 and dports.value else finding.match.dport,
    )
    part = len(rows) / len(finding.rows)
    size = f"{features.amount('packets')} from {features.senders} to {where}"
    return replace(
        finding,
        title=f"{finding.title} on {where}",
        rows=rows,
        evidence=(f"{size}; another of its kind hits others", *finding.evidence),
        spoof=context.spoof(rows),
        match=match,
        part=where,
        asked=finding.asked * part,
        connections=finding.connections * part,
    )
