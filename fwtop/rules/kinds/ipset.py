"""Block sources: an ipset of prefixes with timeouts, asked by one line a family."""

from __future__ import annotations

from fwtop.model.rule import Kind, Rule
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds.common import base, filter_lines
from fwtop.rules.objects import KernelObjects
from fwtop.rules.surroundings import Surroundings


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the sets and lines that drop packets from the rule's sources."""
    clock = base(rule, around.exceptions)
    return KernelObjects(clock.sets, filter_lines(rule, clock))


def _missing(rule: Rule) -> str:
    has_sources = bool(rule.match.sources) or rule.list_name is not None
    return "" if has_sources else "sources (a block needs some)"


KIND = RuleKind(
    Kind.IPSET, Layer.RAW, build,
    optional=("close_open",), missing=_missing, drop="block", is_filter=True, takes_lists=True, is_part=True,
    on_bridges="--via xdp, tc or nftables meets them at the ports",
    evaded="evaded by: other sources", ladder="by source (ipset)",
)  # fmt: skip
