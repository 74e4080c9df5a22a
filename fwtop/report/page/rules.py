"""The page's section on rules: what was predicted of each, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.rule import Rule
from fwtop.render.numbers import percent
from fwtop.report.facts.effects import Change, RuleEffect
from fwtop.report.page.markup import Markup, tag
from fwtop.report.wording import clock, si
from fwtop.rules.command_line import command_line

_MOST_RULES = 40


def rules_section(effects: Sequence[RuleEffect]) -> Markup:
    """Return the section."""
    shown = [_rule(effect) for effect in effects[:_MOST_RULES]]
    if not shown:
        shown = [tag("p", "No rule was installed.", class_="none")]
    return tag("section", tag("h2", "What was done, and what it did"), *shown)


def _rule(effect: RuleEffect) -> Markup:
    rule = effect.rule
    meta = [part for part in (_life(effect), f"by {rule.created_by}" if rule.created_by else "") if part]
    meta.append(f"matched {si(effect.packets)} packets, {si(effect.bytes, 'B')}")
    line = command_line(rule, max_sources=None)
    return tag(
        "div",
        tag("h3", tag("span", rule.id, class_="number"), rule.summary),
        tag("p", " · ".join(meta), class_="meta"),
        tag("div", _prediction(effect), _changes(effect.changes), class_="effect"),
        tag("pre", line[:2_000]) if line else None,
        class_="item",
    )


def expected_harm(rule: Rule) -> str:
    """Write the predicted harm; what was estimated without a baseline says so."""
    share = percent(rule.predicted_collateral_share or 0.0, None)
    guess = " (?: estimated, no baseline)" if rule.predicted_guess else ""
    return f"expected to hit {share} of other traffic{guess}"


def measured_harm(effect: RuleEffect) -> str:
    """Write what users did while the rule was active; "" where that isn't known."""
    told = [f"{percent(share, None)} of the usual {name}" for name, share in effect.users]
    return f"while it was active users made {' and '.join(told)}" if told else ""


def _life(effect: RuleEffect) -> str:
    applied = clock(effect.applied) if effect.applied is not None else "before the record"
    if effect.ended is None:
        return f"{applied} to the end of the record"
    return f"{applied} to {clock(effect.ended)}, then {effect.ending}"


def _prediction(effect: RuleEffect) -> Markup:
    predicted = effect.rule.predicted_pps
    largest = max(predicted or 0.0, effect.actual_pps, 1e-9)
    rows: list[Markup] = []
    if predicted is not None:
        rows += _meter("predicted", predicted, largest, "meter expected")
    rows += _meter("actual", effect.actual_pps, largest, "meter")
    harm = []
    if effect.rule.predicted_collateral_share is not None:
        harm.append(f"Predicted: {expected_harm(effect.rule)}.")
    if measured := measured_harm(effect):
        harm.append(f"Measured: {measured}.")
    return tag(
        "div",
        tag("h4", "Packets stopped a second"),
        tag("div", *rows, class_="pair"),
        tag("h4", "Harm", style="margin-top:14px") if harm else None,
        *(tag("p", words, class_="hint", style="margin:0 0 4px") for words in harm),
    )


def _meter(name: str, pps: float, largest: float, look: str) -> list[Markup]:
    width = f"width:{pps / largest * 100:.1f}%"
    return [
        tag("span", name),
        tag("span", tag("span", class_=look, style=width)),
        tag("span", si(pps, "pps")),
    ]


def _changes(changes: Sequence[Change]) -> Markup:
    if not changes:
        return tag("div")
    rows = (
        tag(
            "tr",
            tag("td", change.name),
            tag("td", figure(change.before, change.unit), class_="n"),
            tag("td", figure(change.after, change.unit), class_="n"),
        )
        for change in changes
    )
    head = tag(
        "tr", tag("th", "The machine"), tag("th", "before", class_="n"), tag("th", "after", class_="n")
    )
    return tag("div", tag("table", head, *rows))


def figure(value: float, unit: str) -> str:
    """Write a figure of the machine with its unit."""
    return percent(value, None) if unit == "share" else si(value, unit)
