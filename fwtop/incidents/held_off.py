"""What fwtop's rules still drop of an attack's senders after its last packet.

Whoever is cut off doesn't stop at once: kernels send SYNs again, tools connect anew, with longer and longer
gaps. While they do, the attack is held off and not over: without the rule it would be back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import host_key
from fwtop.incidents.tracker import Tracked
from fwtop.model.rule import Rule
from fwtop.stats.ledger import attributed, number_of

_CEASES_SECONDS = 5.0  # between an attack's last packet and a rule: its window is that long with what waits


def held_pps(context: AnalysisContext, rules: Sequence[Rule], one: Tracked) -> float | None:
    """Return how many packets a second of an attack's known senders the rules against it drop.

    None: no rule in force was installed against it, or its senders aren't known.
    """
    against = {rule.id for rule in rules if one.began <= rule.created <= one.until + _CEASES_SECONDS}
    if not against or not len(one.sources):
        return None
    drops = attributed(context.counters, context.dropped)
    packets = sum(drop.packets for drop in drops if drop.rule in against)
    return packets * _part(context, against, one) / max(context.counters.seconds, 1e-6)


def _part(context: AnalysisContext, rules: set[str], one: Tracked) -> float:
    """Return its senders' part, 0 to 1, of the sampled packets that these rules may have dropped."""
    numbers = [number_of(rule) for rule in rules]
    codes = [drop.code for drop in context.counters.drops if drop.layer == "netfilter" and drop.code]
    theirs = whole = 0.0
    for packets in (context.traffic.packets, context.dropped):
        mine = np.isin(packets.rule, numbers) | ((packets.rule == 0) & np.isin(packets.reason, codes))
        rows = np.flatnonzero(mine)
        source = host_key(packets.family[rows], packets.src_hi[rows], packets.src_lo[rows])
        weight = packets.weight[rows]
        theirs, whole = theirs + float(weight[among(source, one.sources)].sum()), whole + float(weight.sum())
    return theirs / whole if whole else 0.0
