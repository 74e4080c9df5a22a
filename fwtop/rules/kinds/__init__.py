"""All kinds of rules: each is a module with its `KIND`, and known by being here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Rule
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds import common, harden
from fwtop.rules.objects import KernelObjects
from fwtop.rules.surroundings import NONE, Surroundings

_ORDER = {kind: place for place, kind in enumerate(Kind)}


def _all() -> list[RuleKind]:
    """Read the modules here; those without a kind are shared by others."""
    names = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))
    modules = (import_module(f"{__name__}.{name}") for name in names)
    made: list[RuleKind] = [module.KIND for module in modules if hasattr(module, "KIND")]
    return sorted(made, key=lambda known: (known.layer, _ORDER[known.kind]))


KINDS = {known.kind: known for known in _all()}  # as a packet meets them


def of(kind: Kind) -> RuleKind:
    """Return what is known of a kind."""
    return KINDS[kind]


def filters(verb: str | None = None) -> list[Kind]:
    """Return the kinds that drop single packets, of a verb if given; those in netfilter's chains first."""
    found = [known for known in KINDS.values() if known.is_filter and verb in (None, *known.verbs)]
    return [known.kind for known in sorted(found, key=lambda known: known.layer < Layer.RAW)]


def alternatives(rule: Rule) -> list[Kind]:
    """Return the kinds of rule that can do the same, from the stack down to the driver."""
    if not of(rule.kind).is_filter:
        return [rule.kind]
    if rule.limit is not None:
        fit = [known for known in KINDS.values() if known.keeps is not None]
    elif rule.match.payload:
        fit = [known for known in KINDS.values() if known.reads_payload and not known.missing(rule)]
    else:
        by_source = bool(rule.match.sources or rule.origin)
        looked_up = (known for known in KINDS.values() if known.takes_lists)
        fit = [known for known in looked_up if by_source or known.layer < Layer.RAW]
    return [known.kind for known in reversed(fit)]


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
