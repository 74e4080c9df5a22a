"""From a window to attacks: groups are cut, hypotheses compete, and what they claim is put together.

Answers of one service from its own port and from other ports are one attack. Two attacks of one kind at once
stay two: on two addresses, or on two ports by two tools. Floods of one kind are parted by what they hit, if
each hits one of a few targets. Ports alone don't part them, because one tool may hit several: the packets
must differ, too, or the senders. Last come attacks that show in no group: spread over many addresses, or
filling the table of connections (nf_conntrack-sysctl.rst).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.attacks import HYPOTHESES
from fwtop.analysis.context import AnalysisContext, Finding, Trait, count
from fwtop.analysis.engine.compete import entries_by_turn, resolve
from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.severity import TABLE
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.features import targets_of
from fwtop.analysis.window.traffic import UDP, Rows, weighted_top
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import U16, U64
from fwtop.render.numbers import percent

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
    made = limited(context, finding, rows, f"to {where}; another of its kind hits others")
    return replace(made, title=f"{finding.title} on {where}", part=where)


def limited(context: AnalysisContext, finding: Finding, rows: Rows, note: str) -> Finding:
    """Return a finding of some of its rows only; `note` follows their number and senders."""
    features = context.features(rows)
    sports, dports = features.top("sport"), features.top("dport")
    match = replace(
        finding.match,
        sport=sports.value if sports.share > 0.98 and sports.value else finding.match.sport,
        dport=dports.value if dports.share > 0.98 and dports.value else finding.match.dport,
    )
    part = len(rows) / len(finding.rows)
    size = f"{features.amount('packets')} from {features.senders}"
    return replace(
        finding,
        rows=rows,
        evidence=(f"{size} {note}", *finding.evidence),
        spoof=context.spoof(rows),
        match=match,
        asked=finding.asked * part,
        connections=finding.connections * part,
    )


_NO_ROWS = np.zeros(0, np.intp)


def carpet_bombing(context: AnalysisContext) -> list[Finding]:
    """Find attacks spread over many addresses of this host, so that none stands out.

    An unspecific flood takes this name; a vector with a specific one (SYN flood, NTP amplification)
    keeps its name and its share, so that shares add up to at most one.
    """
    config, traffic = context.config, context.traffic
    floods = [one for one in context.findings if Trait.SCAN not in one.traits and len(one.rows)]
    if not floods:
        return []
    weights, prefix = targets_of(traffic, np.unique(np.concatenate([one.rows for one in floods])))
    total = float(weights.sum())
    if len(weights) < config.carpet_addresses or weights[0] / total > config.carpet_top_share:
        return []
    # Half of the attack must need that many addresses: one target with a few strays is no carpet
    half = int(np.searchsorted(np.cumsum(weights), total / 2)) + 1
    if half < config.carpet_addresses // 2:
        return []
    busiest = percent(weights[0] / total, 1)
    evidence = (
        f"{len(weights):,} addresses of {prefix} are hit; the busiest receives {busiest}",
        f"by {', '.join(sorted({finding.title for finding in floods}))}",
    )
    spoof = max((one.spoof for one in floods), key=lambda verdict: verdict.probability)
    title = f"Carpet bombing of {len(weights):,} addresses in {prefix}"
    bombing = Finding("carpet_bombing", title, _NO_ROWS, 0.93, evidence, spoof, state=True)
    plain = [one for one in floods if Trait.NAMELESS in one.traits]
    if len(plain) != 1:
        return [bombing]
    flood = plain[0]
    context.findings.remove(flood)
    named = {"kind": bombing.kind, "title": f"{title} ({flood.title})", "confidence": bombing.confidence}
    return [replace(flood, **named, evidence=(*evidence, *flood.evidence), traits=Trait.NONE)]


def conntrack_exhaustion(context: AnalysisContext) -> list[Finding]:
    """Find a connection tracking table that is full, or will be within a minute."""
    table, config = context.counters.conntrack, context.config
    if table is None or table.max <= 0:
        return []
    losing = table.drop + table.early_drop > 0 and table.fill > 0.8
    filling = table.seconds_to_full is not None and table.seconds_to_full < config.conntrack_seconds
    growing = filling and table.fill > 0.3 and table.new_per_s > config.flood_pps
    full = table.fill >= config.conntrack_fill and table.new_per_s > config.reflection_pps
    if not (losing or growing or full):
        return []
    evidence = [f"{count(table.count)} of {count(table.max)} entries in use ({percent(table.fill)})"]
    if table.new_per_s > 0:
        evidence.append(f"{count(table.new_per_s)} new entries/s")
    if table.seconds_to_full and table.seconds_to_full >= 1:
        evidence.append(f"full in {table.seconds_to_full:.0f} s at this rate")
    if table.drop or table.early_drop or table.insert_failed:
        evidence.append(
            f"dropped for want of room: {count(table.drop)}, older ones thrown out: "
            f"{count(table.early_drop)}, insertions failed: {count(table.insert_failed)}"
        )
    causes = sorted({finding.title for finding in context.findings if not finding.state})
    if causes:
        evidence.append(f"a consequence of {', '.join(causes)}, not an attack of its own")
    title, confidence = "Exhaustion of the connection table", 0.97 if losing else 0.9 if full else 0.75
    found = Finding("conntrack_exhaustion", title, _NO_ROWS, confidence, tuple(evidence), state=True)
    return [replace(found, pps=table.new_per_s, traits=Trait.FULL_TABLE, exhausts=(TABLE,))]
