"""What a rule would stop and harm, as lines of the dialog."""

from __future__ import annotations

from fwtop.model.preview import Preview
from fwtop.model.text import safe_text
from fwtop.ui.cells import Line
from fwtop.ui.format import number, percent
from fwtop.ui.palette import DIM, GOOD, STRONG, TEXT, WARN
from fwtop.ui.sheet import labelled
from fwtop.ui.verdict_panels import harm

_ATTACKS = 3  # named; what is stopped of the others is less


def effect_of(preview: Preview) -> list[Line]:
    """Write attack share, collateral share with its examples, and the whole."""
    several = len(preview.attacks) > 1
    whole = " of all attacks, " if several else " of the attack, "
    stops: Line = [(percent(preview.attack_share), STRONG), (whole, TEXT)]
    stops += [(number(preview.attack_pps), STRONG), (" packets a second", TEXT)]
    harms: Line = [*harm(preview.collateral_share, guess=False), (" of normal traffic, ", TEXT)]
    harms += [(f"{number(preview.collateral_pps)} packets a second", TEXT)]
    lines = [labelled("stops", stops)]
    if several:
        each = (f"{safe_text(title)} {percent(share)}" for title, share in preview.attacks[:_ATTACKS])
        lines.append(labelled("", [(", ".join(each), DIM)]))
    lines.append(labelled("harms", harms))
    warned = any("guess" in warning for warning in preview.warnings)
    if preview.guess and not warned:
        lines.append(labelled("", [("a guess: nothing was seen before the attack", WARN)]))
    for number_of, example in enumerate(preview.examples):
        line: Line = [(safe_text(example), TEXT)]
        lines.append(labelled("such as" if number_of == 0 else "", line))
    if not preview.examples and preview.collateral_share == 0:
        unhit = (
            "none of what looks normal now would be hit"
            if preview.guess
            else "no normal packet seen would be hit"
        )
        lines.append(labelled("", [(unhit, DIM if preview.guess else GOOD)]))
    lines.append(labelled("in all", [(f"{number(preview.total_pps)} packets a second match now", DIM)]))
    return lines


def relief() -> list[Line]:
    """Say what a rule does that drops nothing."""
    return [labelled("effect", [("drops nothing: its packets stay out of the connection table", TEXT)])]
