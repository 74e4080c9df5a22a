"""A connection tracking table that fills up. Source: the kernel's nf_conntrack-sysctl.rst."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding, Trait, count
from fwtop.render.numbers import percent

_NO_ROWS = np.zeros(0, np.intp)


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
    confidence = 0.97 if losing else 0.9 if full else 0.75
    title = "Exhaustion of the connection table"
    return [
        Finding(
            "conntrack_exhaustion",
            title,
            _NO_ROWS,
            confidence,
            tuple(evidence),
            state=True,
            pps=table.new_per_s,
            traits=Trait.FULL_TABLE,
        )
    ]
