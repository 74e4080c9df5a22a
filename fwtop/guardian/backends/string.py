"""Match payload bytes: anywhere with xt_string, at an exact offset with xt_u32 (render/xtables.py)."""

from __future__ import annotations

from fwtop.guardian.backends.common import DROP, base
from fwtop.guardian.objects.spec import ChainLine, KernelObjects
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Rule
from fwtop.render.xtables import field_args, match_protocols, payload_args


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> KernelObjects:
    """Return the lines that drop packets with all of the rule's byte strings."""
    clock = base(rule, exceptions)
    lines = []
    for family, asks in clock.asks.items():
        for protocol in match_protocols(rule):
            fields = field_args(rule.match, family, protocol)
            payload = [arg for item in rule.match.payload for arg in payload_args(item, family, protocol)]
            lines.append(ChainLine(family, (*fields, *asks, *payload), DROP))
    return KernelObjects(clock.sets, tuple(lines))
