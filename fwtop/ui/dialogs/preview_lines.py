"""A preview in words: the share stopped, the harm, who would be hit."""

from __future__ import annotations

from fwtop.model.rule import Preview
from fwtop.model.text import safe_text
from fwtop.ui.drawing.format import number, percent
from fwtop.ui.drawing.style import DIM, GOOD, STRONG, TEXT, WARN, Line
from fwtop.ui.drawing.text import labelled, paragraph
from fwtop.ui.lists.panels import NO_BASELINE, harm

_ATTACKS = 3  # listed by name in a preview


def preview_lines(preview: Preview) -> list[Line]:
    """Write what must be read before installing: the share stopped, and the harm."""
    several = len(preview.attacks) > 1
    whole = f" of the {safe_text(preview.attack or 'attack')}, " if several else " of the attack, "
    stops: Line = [(percent(preview.attack_share), STRONG), (whole, TEXT)]
    of_all = " packets/s of all attacks" if several else " packets a second"
    stops += [(number(preview.attack_pps), STRONG), (of_all, TEXT)]
    harms: Line = [*harm(preview.collateral_share, guess=preview.guess), (" of normal traffic, ", TEXT)]
    harms += [(f"{number(preview.collateral_pps)} packets a second", TEXT)]
    lines = [labelled("stops", stops)]
    if several:
        each = (f"{safe_text(title)} {percent(share)}" for title, share in preview.attacks[:_ATTACKS])
        lines.append(labelled("", [(", ".join(each), DIM)]))
    lines.append(labelled("harms", harms))
    warned = any("baseline" in warning or "guess" in warning for warning in preview.warnings)
    if preview.guess and not warned:
        lines.append(labelled("", [(NO_BASELINE, WARN)]))
    return lines


def example_lines(preview: Preview) -> list[Line]:
    """Write who would be hit, and all that matches."""
    lines: list[Line] = []
    for number_of, example in enumerate(preview.examples):
        lines.append(labelled("such as" if number_of == 0 else "", [(safe_text(example), TEXT)]))
    if not preview.examples and preview.collateral_share == 0:
        unhit = "no normal packet seen would be hit"
        if preview.guess:
            unhit = "none of what looks normal now would be hit"
        lines.append(labelled("", [(unhit, DIM if preview.guess else GOOD)]))
    matches = f"{number(preview.total_pps)} packets a second match now"
    return [*lines, labelled("total", [(matches, DIM)])]


def text_lines(text: str, width: int) -> list[Line]:
    """Wrap a text of several lines, such as a script; each line is made safe on its own."""
    return [row for line in text.splitlines() for row in paragraph(safe_text(line, limit=2000), width)]


def notrack_lines() -> list[Line]:
    """Describe the effect of a rule that drops nothing."""
    return [labelled("effect", [("drops nothing: its packets stay out of the connection table", TEXT)])]
