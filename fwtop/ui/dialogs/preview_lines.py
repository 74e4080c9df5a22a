"""Previews in words: what rules stop, their harm, who would be hit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fwtop.model.rule import PlanView, Preview, Rule
from fwtop.model.text import safe_text
from fwtop.rules.kinds import of
from fwtop.ui.drawing.format import number, percent, wrap
from fwtop.ui.drawing.style import DIM, GOOD, STRONG, TEXT, WARN, Line
from fwtop.ui.drawing.text import LABEL, labelled, paragraph
from fwtop.ui.lists.attacks import NO_BASELINE, clients_hit

_ATTACKS = 3  # listed by name in a preview
_MOST_COMMANDS, _MOST_COMMAND_LINES = 200, 402
_INDENT = "   "  # below the letter of the attack
_ENOUGH = 0.95  # of an attack: who stops so much leaves other rules nothing to add


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


def command_lines(commands: Sequence[str], width: int) -> list[Line]:
    """Write commands and scripts, as many as one may read; each of their lines is made safe on its own."""
    lines: list[Line] = [[], [("Commands", DIM)]] if commands else []
    for place, command in enumerate(commands):
        if place == _MOST_COMMANDS or len(lines) >= _MOST_COMMAND_LINES:
            return [*lines, [(f"  … and {len(commands) - place} more", DIM)]]
        for text in command.splitlines():
            lines += [[("  ", TEXT), *row] for row in paragraph(safe_text(text, limit=2000), width - 2)]
    return lines


def relief_lines(rule: Rule, width: int) -> list[Line]:
    """Say what a rule that drops nothing does instead."""
    is_exempt = of(rule.kind).untracks
    does = "its packets stay out of the connection table" if is_exempt else rule.summary
    rows = wrap(safe_text(f"drops nothing: {does}"), width - LABEL)
    return [
        labelled("effect" if place == 0 else "", [(row, TEXT)], width=LABEL) for place, row in enumerate(rows)
    ]


# -- a set: rules that are installed together, one for each attack


class Part(Struct, frozen=True):
    """One of the rules of a dialog with its preview and plan; `left_out` says why it isn't installed."""

    rule: Rule
    letter: str = ""  # of the attack
    preview: Preview | None = None
    plan: PlanView = PlanView()
    left_out: str = ""


def stopped(parts: Sequence[Part]) -> dict[str, float]:
    """Return the share of each attack, by title, that the best of the rules stops beside active ones."""
    found: dict[str, float] = {}
    for part in parts:
        if part.preview is None or part.left_out:
            continue
        for title, share in (dict(part.preview.attacks) | dict(part.preview.together)).items():
            found[title] = max(found.get(title, 0.0), share)
    return found


def adds_nothing(preview: Preview, without: Mapping[str, float]) -> bool:
    """Check whether without a rule enough is stopped of each attack that it would stop."""
    together = dict(preview.together)
    aimed = [(title, together.get(title, share)) for title, share in preview.attacks if share > 0]
    return bool(aimed) and all(without.get(title, 0.0) >= min(share, _ENOUGH) for title, share in aimed)


def total_harm(parts: Sequence[Part]) -> float:
    """Return the share of normal traffic that rules drop together at most, 0 to 1."""
    found = (part.preview.collateral_share for part in parts if part.preview and not part.left_out)
    return min(sum(found), 1.0)


def sum_lines(parts: Sequence[Part], known: int) -> list[Line]:
    """Write what a set stops, which is at least what the best of its rules stops, and its harm."""
    lines = [
        labelled(
            "stops" if place == 0 else "",
            [(percent(share), STRONG), (f" of {safe_text(title)}", TEXT)],
            width=LABEL,
        )
        for place, (title, share) in enumerate(stopped(parts).items())
    ]
    guess = any(part.preview.guess for part in parts if part.preview and not part.left_out)
    hit: Line = [("at most ", DIM), *clients_hit(total_harm(parts), known, guess=guess)]
    return [*lines, labelled("clients hit", [*hit, (" client-like packets", TEXT)], width=LABEL)]


def part_lines(part: Part, known: int, width: int, told: set[str]) -> list[Line]:
    """Write one rule of a set; warnings that were `told` with an earlier one aren't repeated."""
    lines = paragraph(f"{part.letter}  {safe_text(part.rule.summary)}", width, STRONG)
    warnings = [f"left out: {safe_text(part.left_out)}"] if part.left_out else []
    if part.preview is not None and not part.left_out:
        line: Line = [(f"{_INDENT}{number(part.preview.total_pps)} pps match now, ", DIM)]
        hits = clients_hit(part.preview.collateral_share, known, guess=part.preview.guess)
        lines.append([*line, ("clients hit ", DIM), *hits])
    for warning in () if part.left_out else part.plan.warnings:
        if warning not in told:
            warnings.append(f"! {safe_text(warning)}")
            told.add(warning)
    for warning in warnings:
        lines += [[(_INDENT, TEXT), *row] for row in paragraph(warning, width - len(_INDENT), WARN)]
    return lines
