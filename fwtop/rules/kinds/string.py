"""Match payload bytes: anywhere with xt_string, at an exact offset with xt_u32 (rules/xtables.py)."""

from __future__ import annotations

from fwtop.model.rule import Kind, Rule
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds.common import base, filter_lines
from fwtop.rules.objects import KernelObjects
from fwtop.rules.surroundings import Surroundings


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the lines that drop packets with all of the rule's byte strings."""
    clock = base(rule, around.exceptions)
    return KernelObjects(clock.sets, filter_lines(rule, clock))


KIND = RuleKind(
    Kind.STRING, Layer.RAW, build,
    missing=lambda rule: "" if rule.match.payload else "payload (a match needs one)",
    is_filter=True, reads_payload=True, is_part=True,
    on_bridges="--via xdp or tc (with --offset) meets them at the ports",
    evaded="evaded by: another payload", ladder="by payload (string)",
)  # fmt: skip
