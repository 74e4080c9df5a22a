"""Block sources: an ipset of prefixes with timeouts, asked by one line a family."""

from __future__ import annotations

from fwtop.model.rule import Rule
from fwtop.rules.kinds.common import DROP, base
from fwtop.rules.objects import ChainLine, KernelObjects
from fwtop.rules.surroundings import Surroundings
from fwtop.rules.xtables import field_args


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the sets and lines that drop packets from the rule's sources."""
    clock = base(rule, around.exceptions)
    lines = tuple(
        ChainLine(family, (*field_args(rule.match, family), *asks), DROP)
        for family, asks in clock.asks.items()
    )
    return KernelObjects(clock.sets, lines)
