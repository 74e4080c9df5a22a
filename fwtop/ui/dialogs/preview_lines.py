"""A preview in words: the share stopped, the harm, who would be hit."""

from __future__ import annotations

from fwtop.model.rule import Preview, Rule
from fwtop.model.text import safe_text
from fwtop.rules.kinds import of
from fwtop.ui.drawing.format import number, percent, wrap
from fwtop.ui.drawing.style import DIM, GOOD, STRONG, TEXT, WARN, Line
from fwtop.ui.drawing.text import LABEL, labelled, paragraph
from fwtop.ui.lists.attacks import NO_BASELINE, clients_hit

_ATTACKS = 3  # listed by name in a preview


def preview_lines(preview: Preview, known: int) -> list[Line]:
    """Write what must be read before installing: the share stopped, and the harm.

    `known` is how many client-like packets the harm was measured on.
    """
    several = len(preview.attacks) > 1
    whole = f" of the {safe_text(preview.attack or 'attack')}, " if several else " of the attack, "
    stops: Line = [(percent(preview.attack_share), STRONG), (whole, TEXT)]
    of_all = " packets/s of all attacks" if several else " packets a second"
    stops += [(number(preview.attack_pps), STRONG), (of_all, TEXT)]
    hits: Line = [*clients_hit(preview.collateral_share, known, guess=preview.guess)]
    hits += [(f" client-like packets, {number(preview.collateral_pps)} a second", TEXT)]
    lines = [labelled("stops", stops, width=LABEL)]
    if several:
        each = (f"{safe_text(title)} {percent(share)}" for title, share in preview.attacks[:_ATTACKS])
        lines.append(labelled("", [(", ".join(each), DIM)], width=LABEL))
    active, together = dict(preview.already).get(preview.attack, 0.0), dict(preview.together)
    if active:
        words = f"active rules stop {percent(active)} of it already, both {percent(together[preview.attack])}"
        lines.append(labelled("", [(words, WARN)], width=LABEL))
    lines.append(labelled("clients hit", hits, width=LABEL))
    warned = any("baseline" in warning or "guess" in warning for warning in preview.warnings)
    if preview.guess and not warned:
        lines.append(labelled("", [(NO_BASELINE, WARN)], width=LABEL))
    return lines


def example_lines(preview: Preview) -> list[Line]:
    """Write who would be hit, and all that matches."""
    lines: list[Line] = []
    for number_of, example in enumerate(preview.examples):
        lines.append(labelled("such as" if number_of == 0 else "", [(safe_text(example), TEXT)], width=LABEL))
    if not preview.examples and preview.collateral_share == 0:
        unhit: Line = [("No client-like packet matches", DIM if preview.guess else GOOD)]
        lines.append(labelled("", unhit, width=LABEL))
    matches: Line = [(f"{number(preview.total_pps)} pps", DIM)]
    return [*lines, labelled("matches now", matches, width=LABEL)]


def text_lines(text: str, width: int) -> list[Line]:
    """Wrap a text of several lines, such as a script; each line is made safe on its own."""
    return [row for line in text.splitlines() for row in paragraph(safe_text(line, limit=2000), width)]


def relief_lines(rule: Rule, width: int) -> list[Line]:
    """Say what a rule that drops nothing does instead."""
    is_exempt = of(rule.kind).untracks
    does = "its packets stay out of the connection table" if is_exempt else rule.summary
    rows = wrap(safe_text(f"drops nothing: {does}"), width - LABEL)
    return [
        labelled("effect" if place == 0 else "", [(row, TEXT)], width=LABEL) for place, row in enumerate(rows)
    ]
