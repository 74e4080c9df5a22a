"""`fwtop harden resolver` as a proposal: what its steps would be by the questions of this window.

Most machines are no DNS server: what only such a proposal needs, 1 MB, is imported for the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.window.traffic import UDP
from fwtop.harden.playbook import Options, rule_of
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import Fragment

if TYPE_CHECKING:
    from fwtop.resolver.view import View

_PORT = 53
_NOTE = "questions of the window"
_MOST_READ = 1_500  # questions: a parser in Python reads them


def resolver_rule(context: AnalysisContext, finding: Finding) -> Rule | None:
    """Return the playbook's rule against an attack on or through the DNS server here, None if none fits.

    Answers are not looked at, nor which program serves: names abused for their large answers, and what only
    the server's own configuration can do, `fwtop harden resolver` tells.
    """
    if Trait.QUESTIONS not in finding.traits or finding.match.dport != _PORT:
        return None
    from fwtop.harden.resolver import NAME
    from fwtop.resolver.advice import Machine, advise

    if _NOTE not in context.notes:
        context.notes[_NOTE] = _view(context)
    view: View | None = context.notes[_NOTE]
    options = Options(context.config.ttl_seconds, "proposal")
    steps = advise(view, Machine(()), options.ttl_seconds, options.created_by).steps if view else ()
    steps_text = f"{len(steps)} step{'s' * (len(steps) != 1)}"
    what = f"resolver playbook, {steps_text}: stop what attacks through the DNS server, keep its clients"
    return rule_of(NAME, what, tuple(step.rule for step in steps), options)


def _view(context: AnalysisContext) -> View | None:
    """Count the window's questions, as far as one parser keeps up; None if there are none."""
    from fwtop.resolver.view import DnsCounters, view_of

    traffic = context.traffic
    packets = traffic.packets
    asked = (packets.protocol == UDP) & (packets.dport == _PORT) & (packets.fragment == Fragment.NONE)
    rows = np.flatnonzero(asked & (packets.payload_offset > 0))
    if not len(rows) or traffic.seconds <= 0:
        return None
    weight = float(traffic.weight[rows].sum())
    rows = rows[:: max(1, -(-len(rows) // _MOST_READ))]
    counters = DnsCounters()
    for row in rows:
        # The payload is the end of the IP packet.
        ahead = int(packets.ip_length[row]) - int(packets.payload_length[row])
        start = int(packets.payload_offset[row]) - ahead
        if start >= 0:
            counters.packet(packets.data[row, start : packets.captured[row]].tobytes(), incoming=True)
    return view_of(counters, traffic.seconds, max(1, round(weight / len(rows))))
