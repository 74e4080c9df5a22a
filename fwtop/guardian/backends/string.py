"""Match payload bytes: anywhere with xt_string, at an exact offset with xt_u32 (render/xtables.py)."""

from __future__ import annotations

from fwtop.guardian.backends.common import DROP, base
from fwtop.guardian.objects.spec import ChainLine, KernelObjects
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Rule
from fwtop.render.xtables import field_args, match_protocols, with_payload


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> KernelObjects:
    """Return the lines that drop packets with all of the rule's byte strings."""
    clock = base(rule, exceptions)
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
