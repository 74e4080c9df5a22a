"""Drop at tc ingress: a compiled rule on any driver, or beside a foreign XDP program."""

from __future__ import annotations

from fwtop.model.rule import Kind, Rule
from fwtop.rules.fields import early_words
from fwtop.rules.kind import KernelObjects, Layer, RuleKind, Surroundings
from fwtop.rules.kinds import compiled
from fwtop.rules.xtables import compiled_rate


def build(rule: Rule, _: Surroundings) -> KernelObjects:
    """Return the rule to be compiled; raises FwtopError (code 2) if it can't be."""
    return compiled.build(rule)


KIND = RuleKind(
    Kind.TC, Layer.TC, build, early_words,
    optional=("close_open",), place=" at tc ingress", is_filter=True, reads_payload=True, takes_lists=True,
    keeps=compiled_rate, keeper="the tc program", too_many=compiled.too_many,
    ladder="at tc ingress",
    verbs=("block", "drop", "limit", "match"), cost_ns=330.0, bench="drop {port} --via tc",
)  # fmt: skip
