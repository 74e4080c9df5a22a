"""Block sources: an ipset of prefixes with timeouts, asked by one line a family."""

from __future__ import annotations

from fwtop.model.rule import Kind, Rule
from fwtop.rules.fields import block_words
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds.common import drop_all


def _missing(rule: Rule) -> str:
    has_sources = bool(rule.match.sources) or rule.list_name is not None
    return "" if has_sources else "match.sources: a block needs some"


KIND = RuleKind(
    Kind.IPSET, Layer.RAW, drop_all, block_words,
    optional=("close_open",), missing=_missing, drop="block", is_filter=True, reads_payload=True,
    takes_lists=True, is_part=True,
    on_bridges="--via xdp, tc or nftables meets them at the ports",
    evaded="evaded by: other sources", ladder="by source (ipset)",
    verbs=("block",), cost_ns=570.0, bench="block {sources}",
)  # fmt: skip
