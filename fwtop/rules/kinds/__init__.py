"""One module a kind of rule: each turns a Rule into KernelObjects."""

from __future__ import annotations

from fwtop.model.rule import Kind, Rule
from fwtop.rules.kinds import (
    compiled,
    connlimit,
    harden,
    hashlimit,
    ipset,
    nftables,
    notrack,
    protect,
    string,
    synproxy,
    sysctl,
)
from fwtop.rules.kinds.common import unlisted_first
from fwtop.rules.objects import KernelObjects
from fwtop.rules.surroundings import NONE, Surroundings

_BUILDERS = {
    Kind.IPSET: ipset.build,
    Kind.HASHLIMIT: hashlimit.build,
    Kind.STRING: string.build,
    Kind.NOTRACK: notrack.build,
    Kind.XDP: compiled.build,
    Kind.TC: compiled.build,
    Kind.SYSCTL: sysctl.build,
    Kind.NFTABLES: nftables.build,
    Kind.SYNPROXY: synproxy.build,
    Kind.CONNLIMIT: connlimit.build,
    Kind.PROTECT: protect.build,
}


def build(rule: Rule, around: Surroundings = NONE) -> KernelObjects:
    """Return what a rule is in the kernel. Raises FwtopError (code 2) for what its kind can't do."""
    if rule.kind is Kind.HARDEN:
        return harden.together(rule.id, [build(part, around) for part in harden.parts_of(rule)])
    made = _BUILDERS[rule.kind](rule, around)
    return made if rule.kind is Kind.PROTECT else unlisted_first(made, rule, around.known)
