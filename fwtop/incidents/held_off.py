"""What fwtop's rules still drop of an attack's senders after its last packet.

Whoever is cut off doesn't stop at once: kernels send SYNs again, tools connect anew, with longer and longer
gaps. While they do, the attack is held off and not over: without the rule it would be back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import host_key
from fwtop.incidents.tracker import CEASES_SECONDS, Tracked
from fwtop.model.rule import Rule
from fwtop.model.traffic.counters import DropCount
from fwtop.model.traffic.packets import F64, U64, Mask, PacketBatch
from fwtop.stats.ledger import attributed, number_of


class HeldOff:
    """What the rules in force dropped in a window, by the attacks that they were installed against."""

    def __init__(self, context: AnalysisContext, rules: Sequence[Rule]) -> None:
        self._context = context
        self._rules = rules

    def has_rule(self, one: Tracked) -> bool:
        """Whether a rule in force was installed against an attack whose senders are known."""
        return bool(len(one.sources) and self._against(one))

    def pps(self, one: Tracked) -> float | None:
        """Return how many packets a second of an attack's senders the rules against it drop.

        None: no rule in force is against it, or its senders aren't known.
        """
        if not self.has_rule(one):
            return None
        against = self._against(one)
        packets = sum(drop.packets for drop in self._drops if drop.rule in against)
        return packets and packets * self._part(against, one) / max(self._context.counters.seconds, 1e-6)

    def _against(self, one: Tracked) -> set[str]:
        last = one.until + CEASES_SECONDS
        return {rule.id for rule in self._rules if one.began <= rule.created <= last}

    def _part(self, rules: set[str], one: Tracked) -> float:
        """Return its senders' part, 0 to 1, of the sampled packets that these rules may have dropped."""
        numbers, theirs, whole = [number_of(rule) for rule in rules], 0.0, 0.0
        for rule, source, weight in self._samples:
            mine = (rule == 0) | np.isin(rule, numbers)
            whole += float(weight[mine].sum())
            theirs += float(weight[mine & among(source, one.sources)].sum())
        return theirs / whole if whole else 0.0

    @cached_property
    def _drops(self) -> list[DropCount]:
        return attributed(self._context.counters, self._context.dropped)

    @cached_property
    def _samples(self) -> list[tuple[np.ndarray, U64, F64]]:
        """Rule, sender and weight of each sampled packet that a rule dropped, or netfilter (rule 0)."""
        return [self._sampled(self._context.traffic.packets), self._sampled(self._context.dropped)]

    def _sampled(self, packets: PacketBatch) -> tuple[np.ndarray, U64, F64]:
        drops = self._context.counters.drops
        codes = [drop.code for drop in drops if drop.layer == "netfilter" and drop.code]
        dropped: Mask = (packets.rule > 0) | np.isin(packets.reason, codes)
        rows = np.flatnonzero(dropped)
        source = host_key(packets.family[rows], packets.src_hi[rows], packets.src_lo[rows])
        return packets.rule[rows], source, packets.weight[rows]
