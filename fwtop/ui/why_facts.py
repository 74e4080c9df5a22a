"""What the screen says about a rule that does too little, beside what the guardian finds."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.ui.cells import Line
from fwtop.ui.format import wrap
from fwtop.ui.palette import DIM, STRONG, TEXT, WARN
from fwtop.ui.rule_facts import rate_line
from fwtop.ui.sheet import FACTS_WIDTH


def why_facts(status: RuleStatus, sentences: Sequence[str]) -> list[Line]:
    """Write the guardian's sentences under what the rule does now."""
    lines: list[Line] = [[(row, STRONG)] for row in wrap(safe_text(status.rule.summary), FACTS_WIDTH)]
    lines.append([("matches ", DIM), *rate_line(status)])
    for sentence in sentences:
        first, *rest = wrap(safe_text(sentence, limit=600), FACTS_WIDTH - 2)
        lines += [[], [("▪ ", WARN), (first, TEXT)], *([("  " + row, TEXT)] for row in rest)]
    return lines
