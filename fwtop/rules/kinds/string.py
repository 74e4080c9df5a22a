"""Match payload bytes: anywhere with xt_string, at an exact offset with xt_u32 (rules/xtables.py)."""

from __future__ import annotations

from fwtop.model.rule import Kind, Rule
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds.common import DROP, base
from fwtop.rules.objects import ChainLine, KernelObjects
from fwtop.rules.surroundings import Surroundings
from fwtop.rules.xtables import field_args, match_protocols, with_payload


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the lines that drop packets with all of the rule's byte strings."""
    clock = base(rule, around.exceptions)
    lines = tuple(
        ChainLine(
            family,
            (*field_args(rule.match, family, protocol), *with_payload(rule, family, protocol, asks)),
            DROP,
        )
        for family, asks in clock.asks.items()
        for protocol in match_protocols(rule)
    )
    return KernelObjects(clock.sets, lines)


KIND = RuleKind(
    Kind.STRING, Layer.RAW, build,
    missing=lambda rule: "" if rule.match.payload else "payload (a match needs one)",
    is_filter=True, reads_payload=True, is_part=True,
    on_bridges="--via xdp or tc (with --offset) meets them at the ports",
    evaded="evaded by: another payload", ladder="by payload (string)",
)  # fmt: skip
