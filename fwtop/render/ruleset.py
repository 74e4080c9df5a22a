"""Rules and sets of the whole machine as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from fwtop.model.ruleset import ListedRule, ListedSet
from fwtop.render.numbers import number

_BLOCKS = "▁▂▃▄▅▆▇█"
SPARK = 12  # characters of a history


def spark(values: Sequence[float], width: int = SPARK) -> str:
    """Draw the last rates, each as high as its share of the greatest; "" where there is none."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if not top:
        return "▁" * len(shown)
    return "".join(_BLOCKS[round((len(_BLOCKS) - 1) * max(value, 0.0) / top)] for value in shown)


def quantity(value: float | None) -> str:
    """Format a count or rate; "-" where nothing is counted."""
    return "-" if value is None else number(value)


def rule_json(rule: ListedRule) -> dict[str, Any]:
    """Return a rule's own fields."""
    values = asdict(rule).items()
    return {"rule" if name == "text" else name: value for name, value in values}


def set_json(item: ListedSet) -> dict[str, Any]:
    """Return a set's fields."""
    fill = None if item.fill is None else round(item.fill, 4)
    return {**asdict(item), "fill": fill, "nearly_full": item.nearly_full}


def where(rule: ListedRule) -> str:
    """Say what made a rule and where it is."""
    family = f" {rule.family}" if rule.family else ""
    return f"{rule.source}{family} {rule.place}"


def set_line(item: ListedSet) -> str:
    """Write a set with how many entries it has."""
    entries = "?" if item.entries is None else f"{item.entries:,}"
    size = f" of {item.size:,}" if item.size else ""
    full = f", {100 * item.fill:.0f} % full" if item.fill is not None and item.nearly_full else ""
    family = f" {item.family}" if item.family else ""
    return f"{item.source}{family} {item.name} ({item.type}): {entries}{size} entries{full}"
