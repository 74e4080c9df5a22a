"""Attacks that show in no group of packets: spread over many addresses, or filling the table of connections.

Source: the kernel's nf_conntrack-sysctl.rst.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait, count
from fwtop.analysis.severity import TABLE
from fwtop.analysis.window.features import targets_of
from fwtop.render.numbers import percent

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
