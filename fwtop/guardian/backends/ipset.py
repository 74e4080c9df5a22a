"""Block sources: an ipset of prefixes with timeouts, asked by one line a family."""

from __future__ import annotations

from fwtop.guardian.backends.common import DROP, base
from fwtop.guardian.objects.spec import ChainLine, KernelObjects
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Rule
from fwtop.render.xtables import field_args


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> KernelObjects:
    """Return the sets and lines that drop packets from the rule's sources."""
    clock = base(rule, exceptions)
    lines = tuple(
        ChainLine(family, (*field_args(rule.match, family), *asks), DROP)
        for family, asks in clock.asks.items()
    )
    return KernelObjects(clock.sets, lines)
