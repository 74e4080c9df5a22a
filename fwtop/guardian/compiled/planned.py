"""Compiled rules that are planned as one set: they are compiled once, with the first that is installed."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.model.rule import Kind, Rule
from fwtop.xdp.maps import MAX_RULES

_MOST = 16  # rules of a set


class Planned:
    """The rules that were planned last, in their order."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, rule: Rule, *, follows: bool) -> None:
        """Add a rule to the set, or begin a new one."""
        self._rules = [*(self._rules if follows else ()), rule][-_MOST:]

    @property
    def first(self) -> Rule:
        """The first rule of the set."""
        return self._rules[0]

    def others(self, rule: Rule, used: Iterable[int]) -> dict[int, Rule]:
        """Return the rules of a rule's set that can be compiled with it, in free slots.

        Those with maps of their own can't: the maps bear the number that a rule gets when it is installed.
        """
        if not any(same_code(rule, planned) for planned in self._rules):
            return {}
        found = [planned for planned in self._rules if _is_short(planned) and not same_code(rule, planned)]
        taken = set(used)
        free = [slot for slot in range(MAX_RULES) if slot not in taken]
        return dict(zip(free, found, strict=False))


def same_code(one: Rule, other: Rule) -> bool:
    """Return whether two rules compile to the same code."""
    wanted = (other.kind, other.list_name, other.match, other.limit)
    return (one.kind, one.list_name, one.match, one.limit) == wanted


def _is_short(rule: Rule) -> bool:
    return rule.kind is Kind.XDP and rule.limit is None and rule.list_name is None and not rule.match.sources
