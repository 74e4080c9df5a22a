"""What a rule of netfilter drops of fragmented datagrams.

Connection tracking reassembles them (nf_defrag, at priority -400) before the first rule sees them, so that a
rule drops whole datagrams by what their first fragment holds, and meets no fragment at all. Compiled rules
and nftables at ingress stand before that: they see each fragment alone.
"""

from __future__ import annotations

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.window.traffic import Traffic, mix
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import F64, U64, Fragment
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import drops_nothing, of


def sees_datagrams(rule: Rule, context: AnalysisContext) -> bool:
    """Check for a rule behind reassembly: one of netfilter on a machine that tracks connections."""
    table, match = context.counters.conntrack, rule.match
    by_address = not (match.payload or match.sport or match.dport or match.tcp_flags or match.fragment)
    if by_address:  # which each fragment has
        return False
    return (
        of(rule.kind).layer >= Layer.RAW and not drops_nothing(rule) and table is not None and table.count > 0
    )


def of_datagrams(dropped: F64, rule: Rule, traffic: Traffic) -> F64:
    """Return the dropped share of each row if whole datagrams are dropped.

    Later fragments share the fate of their first one, or, where that wasn't sampled, the mean fate of their
    sender's first fragments, or of all.
    """
    if rule.match.fragment is not None:
        return dropped * 0.0 if rule.match.fragment else dropped
    packets = traffic.packets
    later = np.flatnonzero(packets.fragment == Fragment.LATER)
    first = np.flatnonzero(packets.fragment == Fragment.FIRST)
    if not len(later) or not len(first):
        return dropped
    result = dropped.copy()
    sender = mix(traffic.source_key, packets.protocol.astype(np.uint64))
    datagram = mix(sender ^ traffic.dest_key, packets.ip_id.astype(np.uint64))
    weight = traffic.weight[first]
    fate = np.full(len(later), float(weight @ dropped[first] / weight.sum()))
    for keys in (sender, datagram):  # the closest kin last
        known, mean = _means(keys[first], dropped[first], weight)
        place = np.minimum(np.searchsorted(known, keys[later]), len(known) - 1)
        fate = np.where(known[place] == keys[later], mean[place], fate)
    result[later] = fate
    return result


def _means(keys: U64, values: F64, weight: F64) -> tuple[U64, F64]:
    """Return the sorted distinct keys, and the weighted mean of the values of each."""
    known, place = np.unique(keys, return_inverse=True)
    sums = np.bincount(place, values * weight, len(known))
    return known, np.asarray(sums / np.bincount(place, weight, len(known)), np.float64)
