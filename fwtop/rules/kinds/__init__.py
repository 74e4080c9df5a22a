"""All kinds of rules, each a module with its `KIND`: a new one is a new file, and its name in the list."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Rule
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds import (
    common,
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
    tc,
    xdp,
)
from fwtop.rules.objects import KernelObjects
from fwtop.rules.surroundings import NONE, Surroundings

_MODULES = (
    *(xdp, tc, nftables, ipset, hashlimit, string, notrack, protect, connlimit, synproxy, sysctl, harden),
)
KINDS: dict[Kind, RuleKind] = {module.KIND.kind: module.KIND for module in _MODULES}  # as a packet meets them


def of(kind: Kind) -> RuleKind:
    """Return what is known of a kind."""
    return KINDS[kind]


def filters() -> list[Kind]:
    """Return the kinds that drop packets one by one: those in netfilter's chains first."""
    found = [known for known in KINDS.values() if known.is_filter]
    return [known.kind for known in sorted(found, key=lambda known: known.layer < Layer.RAW)]


def drops_nothing(rule: Rule) -> bool:
    """Return whether no packet is dropped because of a rule."""
    return all(of(kind).drops_nothing for kind in rule.kinds)


def has_settings(rule: Rule) -> bool:
    """Return whether a rule changes sysctls, which have no clock in the kernel."""
    return any(of(kind).has_settings for kind in rule.kinds)


def why_too_many(kind: Kind, prefixes: Sequence[Prefix]) -> str | None:
    """Return why a rule can't hold so many sources, and what can; None if it can."""
    return (of(kind).too_many or common.too_many)(prefixes)


def build(rule: Rule, around: Surroundings = NONE) -> KernelObjects:
    """Return what a rule is in the kernel. Raises FwtopError (code 2) for what its kind can't do."""
    if rule.parts:
        return harden.together(rule.id, [build(part, around) for part in harden.parts_of(rule)])
    made = of(rule.kind).build(rule, around)
    # Access lists decide at a protected port; all of its lines are behind the allow-list
    return made if rule.protection is not None else common.unlisted_first(made, rule, around.known)
