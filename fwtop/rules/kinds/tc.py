"""Drop at tc ingress: a compiled rule on any driver, or beside a foreign XDP program."""

from __future__ import annotations

from fwtop.model.rule import Kind
from fwtop.rules.fields import early_words
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds import compiled
from fwtop.rules.xtables import compiled_rate

KIND = RuleKind(
    Kind.TC, Layer.TC, lambda rule, _: compiled.build(rule), early_words,
    optional=("close_open",), place=" at tc ingress", is_compiled=True, is_filter=True,
    reads_payload=True, takes_lists=True,
    keeps=compiled_rate, keeper="the tc program", too_many=compiled.too_many,
    elsewhere="compiles this for tc ingress", ladder="at tc ingress",
    verbs=("block", "drop", "limit", "match"), cost_ns=330.0, bench="drop {port} --via tc",
)  # fmt: skip
