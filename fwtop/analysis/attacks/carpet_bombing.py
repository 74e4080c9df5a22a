"""Attacks that are spread over many addresses, so that none stands out."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.window.features import targets_of
from fwtop.render.numbers import percent

_NO_ROWS = np.zeros(0, np.intp)


def carpet_bombing(context: AnalysisContext) -> list[Finding]:
    """Find attacks spread over many addresses of this host, so that none stands out.

    An unspecific flood takes this name; a vector with a specific one (SYN flood, NTP amplification)
    keeps its name and its share, so that shares add up to at most one.
    """
    config, traffic = context.config, context.traffic
    floods = [
        finding for finding in context.findings if Trait.SCAN not in finding.traits and len(finding.rows)
    ]
    if not floods:
        return []
    hit = np.zeros(len(traffic), np.bool_)
    hit[np.concatenate([finding.rows for finding in floods])] = True
    rows = traffic.rows(hit)
    weights, prefix = targets_of(traffic, rows)
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
    spoof = max((finding.spoof for finding in floods), key=lambda verdict: verdict.probability)
    title = f"Carpet bombing of {len(weights):,} addresses in {prefix}"
    plain = [finding for finding in floods if Trait.NAMELESS in finding.traits]
    if len(plain) != 1:
        return [Finding("carpet_bombing", title, _NO_ROWS, 0.93, evidence, spoof, state=True)]
    flood = plain[0]
    context.findings.remove(flood)
    title = f"{title} ({flood.title})"
    return [
        replace(
            flood,
            kind="carpet_bombing",
            title=title,
            confidence=0.93,
            evidence=(*evidence, *flood.evidence),
            traits=Trait.NONE,
        )
    ]
