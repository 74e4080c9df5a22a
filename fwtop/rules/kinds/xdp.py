"""Drop in the driver, before there is a packet: a compiled rule in an XDP program."""

from __future__ import annotations

from fwtop.model.rule import Kind
from fwtop.rules.fields import early_words
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds import compiled
from fwtop.rules.xtables import compiled_rate

_ATTACH = "some drivers reset the interface for a moment when the first XDP program is attached"

KIND = RuleKind(
    Kind.XDP, Layer.DRIVER, lambda rule, _: compiled.build(rule, (_ATTACH,)), early_words,
    optional=("close_open",), place=" in the driver", is_compiled=True, is_filter=True,
    reads_payload=True, takes_lists=True,
    keeps=compiled_rate, keeper="the XDP program", too_many=compiled.too_many,
    elsewhere="compiles this into its XDP program", evaded="evaded by: other header fields",
    ladder="in the driver (XDP)",
    verbs=("block", "drop", "limit", "match"), cost_ns=105.0, bench="drop {port} --via xdp",
)  # fmt: skip
