"""From a window to attacks: groups are cut, hypotheses compete, and what they claim is put together."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.analysis.attacks import HYPOTHESES
from fwtop.analysis.attacks.carpet_bombing import carpet_bombing
from fwtop.analysis.attacks.connection_table import conntrack_exhaustion
from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.engine.claims import entries_by_turn, resolve
from fwtop.analysis.engine.hypothesis import Hypothesis
from fwtop.analysis.parts import merged, parted


def find_attacks(context: AnalysisContext, hypotheses: Sequence[Hypothesis] = HYPOTHESES) -> list[Finding]:
    """Return the attacks of a window; the order of the hypotheses means nothing."""
    for about in entries_by_turn(tuple(hypotheses)).values():
        resolve(context, about)
    context.findings[:] = parted(context, merged(context.findings))
    for state in (carpet_bombing, conntrack_exhaustion):
        context.findings.extend(state(context))
    return context.findings
