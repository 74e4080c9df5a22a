"""Later fragments carry no ports: they belong to the attack that has the first one of their datagram."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Trait, count
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import Rows, mix
from fwtop.model.traffic.packets import U64, Mask

_MOST = 0.9  # of the later fragments: the rest lost their first fragment
_LEAST = 0.05  # more than chance
_MOST_OF_ANSWERS = 0.6  # reflectors answer in fragments, of which routers drop some


def attach(context: AnalysisContext) -> None:
    """Add later fragments to the newest finding if its first fragments have the same sources."""
    finding = context.findings[-1]
    packets, traffic = context.traffic.packets, context.traffic
    heads = finding.rows[traffic.first.take(finding.rows)]
    if len(heads) == 0:
        return
    protocol = packets.protocol[heads[0]]
    later = traffic.rows(traffic.later & context.unclaimed & (packets.protocol == protocol))
    if len(later) == 0:
        return
    mine = _same_datagram(context, heads, later)
    most = _MOST
    if Trait.AMPLIFIED in finding.traits:  # a thin sample misses sources (Good 1953)
        mine |= traffic.of_sources(finding.rows)[later]
        most = min(_MOST_OF_ANSWERS, max(_LEAST, 1 - context.features(finding.rows).singles))
    if mine.mean() > most or (context.sparse and (mine.mean() > 0.5 or _as_many(context, heads, later))):
        mine[:] = True  # the first fragments of the rest were not sampled
    if not mine.any():
        return
    rows = np.sort(np.concatenate([finding.rows, later[mine]]))
    sentence = f"{count(traffic.weight[later[mine]].sum())} later fragments of its datagrams are included"
    context.findings[-1] = replace(finding, rows=rows, evidence=(*finding.evidence, sentence))
    context.unclaimed[later[mine]] = False


def datagrams_of(context: AnalysisContext, rows: Rows) -> U64:
    """Return a key of each row's datagram."""
    traffic = context.traffic
    return mix(
        traffic.source_key[rows] ^ traffic.dest_key[rows], traffic.packets.ip_id[rows].astype(np.uint64)
    )


def _same_datagram(context: AnalysisContext, heads: Rows, later: Rows) -> Mask:
    return among(datagrams_of(context, later), datagrams_of(context, heads))


def _as_many(context: AnalysisContext, heads: Rows, later: Rows) -> bool:
    """Check for plausible numbers of first and later fragments; a thin sample splits datagrams."""
    weight = context.traffic.weight
    return float(weight[heads].sum()) > 0.1 * float(weight[later].sum())
