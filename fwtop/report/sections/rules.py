"""The section on rules: what was predicted of each, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.render.numbers import percent
from fwtop.report.document import Block, Code, Meter, Section, Table, Text
from fwtop.report.facts.effects import Change, RuleEffect
from fwtop.report.sections.first import NO_RULE
from fwtop.report.wording import clock, si
from fwtop.rules.command_line import command_line

_MOST_RULES = 40
_MOST_COMMAND = 2_000


def rules_section(effects: Sequence[RuleEffect]) -> Section:
    """Return the section."""
    shown = [_rule(effect) for effect in effects[:_MOST_RULES]]
    return Section("What was done, and what it did", shown or [NO_RULE])


def _rule(effect: RuleEffect) -> Section:
    rule = effect.rule
    meta = [part for part in (_life(effect), f"by {rule.created_by}" if rule.created_by else "") if part]
    meta.append(f"matched {si(effect.packets)} packets, {si(effect.bytes, 'B')}")
    measured = [Section("", _prediction(effect), ""), Section("", _changes(effect.changes), "")]
    blocks: list[Block] = [Text(" · ".join(meta), "meta"), Section("", measured, "effect")]
    if line := command_line(rule, max_sources=None):
        blocks.append(Code([line[:_MOST_COMMAND]]))
    return Section(rule.summary, blocks, "item", level=3, rule=rule.id)


def _life(effect: RuleEffect) -> str:
    applied = clock(effect.applied) if effect.applied is not None else "before the record"
    if effect.ended is None:
        return f"{applied} to the end of the record"
    return f"{applied} to {clock(effect.ended)}, then {effect.ending}"


def _prediction(effect: RuleEffect) -> list[Block]:
    predicted, actual = effect.rule.predicted_pps, effect.actual_pps
    largest = max(predicted or 0.0, actual, 1e-9)
    meters = [("actual", Meter(actual / largest, filled=True), si(actual, "pps"))]
    if predicted is not None:
        meters.insert(0, ("predicted", Meter(predicted / largest, filled=False), si(predicted, "pps")))
    harm = [Text(words, "hint") for words in _harm(effect)]
    return [
        Section("Packets stopped a second", [Table((), meters, "pair")], "", level=4),
        Section("Harm", harm, "", level=4),
    ]


def _harm(effect: RuleEffect) -> list[str]:
    """Say what was predicted of others' packets, and what users did meanwhile."""
    harm = []
    if effect.rule.predicted_collateral_share is not None:
        share = percent(effect.rule.predicted_collateral_share, None)
        guess = " (?: estimated, no baseline)" if effect.rule.predicted_guess else ""
        harm.append(f"Predicted: expected to hit {share} of other traffic{guess}.")
    if effect.users:
        told = " and ".join(f"{percent(share, None)} of the usual {name}" for name, share in effect.users)
        harm.append(f"Measured: while it was active users made {told}.")
    return harm


def _changes(changes: Sequence[Change]) -> list[Block]:
    rows = [
        (change.name, _figure(change.before, change.unit), _figure(change.after, change.unit))
        for change in changes
    ]
    return [Table(("The machine", "before", "after"), rows)] if rows else []


def _figure(value: float, unit: str) -> str:
    return percent(value, None) if unit == "share" else si(value, unit)
