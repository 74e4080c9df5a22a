"""Limit the rate of each source prefix: xt_hashlimit, which keeps a token bucket a prefix."""

from __future__ import annotations

from fwtop.mitigate.artifacts import Artifacts, ChainLine
from fwtop.mitigate.drivers.common import base
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.xtables import field_args, limit_args


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> Artifacts:
    """Return the lines that drop what a source prefix sends above the limit."""
    if rule.limit is None:
        raise FwtopError("a limit needs a rate; nothing was installed", 2)
    clock = base(rule, exceptions)
    lines = tuple(
        ChainLine(
            family,
            (*field_args(rule.match, family), *asks, *limit_args(rule.id, rule.limit, family)),
            ("-j", "DROP"),
        )
        for family, asks in clock.asks.items()
    )
    return Artifacts(clock.sets, lines)
