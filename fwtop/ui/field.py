"""A field of the rule dialog: what is typed is checked before it touches the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from fwtop.model.rule import Match, Rule
from fwtop.model.wording import summarised

Step = TypeVar("Step", int, tuple[int, int])
PREFIXES = ((8, 32), (16, 48), (24, 56), (32, 64))  # IPv4 and IPv6 lengths that mean about the same


class BadText(ValueError):
    """What was typed means nothing here; the text says what would."""


@dataclass(frozen=True, slots=True)
class Field:
    """One thing about a rule: `write` raises BadText; `step` is there where arrows make sense."""

    name: str
    read: Callable[[Rule], str]
    write: Callable[[Rule, str], Rule]
    step: Callable[[Rule, int], Rule] | None = None


def edited(rule: Rule, match: Match) -> Rule:
    """Return the rule with another match, and a summary that says so."""
    return summarised(replace(rule, match=match))


def whole_number(text: str, low: int, high: int, what: str) -> int:
    """Read a number; raises BadText with what would be one."""
    if not text.isascii() or not text.isdigit() or not low <= int(text[:12]) <= high:
        raise BadText(f"{what} is a whole number from {low} to {high:,}")
    return int(text)


def stepped(values: tuple[Step, ...], present: Step, delta: int) -> Step:
    """Return the neighbour of a value; one that is not listed goes to the next that is."""
    if present in values:
        index = values.index(present) + delta
    else:
        index = sum(value < present for value in values) - (1 if delta < 0 else 0)
    return values[max(min(index, len(values) - 1), 0)]


def lengths(text: str, *, whole: int) -> tuple[int, int]:
    """Read `24` or `24/56`: the lengths for IPv4 and IPv6; `whole` is what belongs to a lone 32."""
    first, _, second = text.replace(" ", "").lstrip("/").partition("/")
    four = whole_number(first, 1, 32, "a length, as 24, or 24/56 with IPv6's,")
    if second:
        return four, whole_number(second, 1, 128, "an IPv6 prefix length")
    return four, whole if four == 32 else next(six for length, six in PREFIXES if four <= length)
