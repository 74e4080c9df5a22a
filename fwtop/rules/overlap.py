"""Whether one rule does what another would."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE, pack_prefixes
from fwtop.model.rule import Kind, Match, Rule, RuleStatus
from fwtop.rules.kinds import of

_MOST_COMPARED = 200_000  # pairs of prefixes
_SAME = (  # besides the match
    *("kind", "limit", "connections", "settings", "origin", "protection"),
    *("close_open", "stateless", "forget"),
)


def same_effect(one: Rule, other: Rule) -> bool:
    """Tell whether two rules do the same; how long they last doesn't count."""
    if one.parts or other.parts:
        return one.playbook == other.playbook
    derived = one.origin is not None  # then so are the sources
    return _are_alike(one, other) and (derived or tuple(one.match.sources) == tuple(other.match.sources))


def is_double(one: Rule, other: Rule) -> bool:
    """Tell whether two rules do the same, whose sources are known: also those that an origin stands for."""
    if one.parts or other.parts:
        pairs = zip(one.parts, other.parts, strict=False)
        return len(one.parts) == len(other.parts) and all(is_double(*pair) for pair in pairs)
    listed = one.list_name is not None
    return _are_alike(one, other) and (listed or _are_same(one.match.sources, other.match.sources))


IDENTITY = ("id", "created", "created_by", "replaces", "key")  # what makes a rule the one that it is
_CHANGED_IN_PLACE = ("match", "limit", "summary", "labels", "origin")


def fixed_field(old: Rule, new: Rule) -> str:
    """Return the first field that differs, and that can't be changed in place; "" if there is none."""
    fixed = (
        name
        for name in old.__struct_fields__
        if name not in (*IDENTITY, *_CHANGED_IN_PLACE) and not name.startswith("predicted_")
    )
    return next((name for name in fixed if getattr(old, name) != getattr(new, name)), "")


def _are_alike(one: Rule, other: Rule) -> bool:
    """Compare all but the sources."""
    same = all(getattr(one, name) == getattr(other, name) for name in _SAME)
    return same and replace(one.match, sources=()) == replace(other.match, sources=())


def _are_same(mine: Sequence[Prefix], theirs: Sequence[Prefix]) -> bool:
    """Compare lists of sources in any order."""
    if len(mine) != len(theirs) or len(mine) <= ATTACH_ABOVE:
        return len(mine) == len(theirs) and sorted(mine) == sorted(theirs)
    return bytes(pack_prefixes(mine)) == bytes(pack_prefixes(theirs))


def includes(active: Rule, wanted: Rule) -> bool:
    """Tell whether an active rule already drops all that a wanted one would."""
    if same_effect(active, wanted):
        return True
    drops = of(active.kind).is_filter and active.limit is None
    if not drops or wanted.kind is not active.kind or not is_wider(active.match, wanted.match):
        return False
    if not active.match.sources:
        return active.origin is None  # or else the list is known to the guardian only
    if not wanted.match.sources or len(active.match.sources) * len(wanted.match.sources) > _MOST_COMPARED:
        return False
    return all(
        any(prefix.contains(source) for prefix in active.match.sources) for source in wanted.match.sources
    )


def is_wider(active: Match, wanted: Match) -> bool:
    """Tell whether a match has no condition, its sources aside, that another one doesn't have, too."""
    conditions = (
        (getattr(active, name), getattr(wanted, name))
        for name in Match.__struct_fields__
        if name != "sources"
    )
    return all(held in (None, ()) or held == other for held, other in conditions)


def covering_rule(wanted: Rule, mitigations: Sequence[RuleStatus]) -> str:
    """Return the id of an active rule that already does what a rule would do; "" if none does."""
    for status in mitigations:
        if status.stops and includes(status.rule, wanted):
            return status.rule.id
    return ""


def as_one(rules: Sequence[Rule]) -> Rule:
    """Return rules as one, to count what they do together: who is hit by two of them is hit once."""
    parts = tuple(part for rule in rules for part in rule.parts or (rule,))
    return rules[0] if len(rules) == 1 else Rule("", Kind.HARDEN, Match(), "", 0, parts=parts)
