"""Drop at netdev ingress: before the stack, on any driver, where a machine has no XDP."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.addresses.address import Prefix, looked_up, of_family, says_more
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule
from fwtop.rules.fields import early_words
from fwtop.rules.kind import KernelObjects, Layer, RuleKind, Surroundings
from fwtop.rules.kinds.common import families_asked, list_elements
from fwtop.rules.nft_objects import (
    NETDEV,
    NftLine,
    NftRule,
    NftSet,
    address_set,
    field_words,
    list_set,
    list_set_of,
    set_of,
    why_crossing,
)

_PREFIXES = 10_000  # nft reads elements one by one, and the kernel keeps them in a tree


def build(rule: Rule, _: Surroundings) -> KernelObjects:
    """Return sets and lines; raises FwtopError (code 2) on what netdev ingress can't say."""
    if rule.limit is not None:
        raise FwtopError("netdev ingress has no rate limit here: use fwtop limit; nothing was installed", 2)
    if (why := _too_many(rule.match.sources)) is not None:
        raise FwtopError(f"{why}; nothing was installed", 2)
    sets: list[NftSet] = []
    lines: list[NftLine] = []
    for family in families_asked(rule):
        words, own_sets = conditions_of(rule, family)
        if words is not None:
            counted, source_sets = sources_of(rule, family)
            sets += [*source_sets, *own_sets]
            lines.append(NftLine(f"rules{family}", family, " ".join(words), "counter drop", counted))
    if not lines:
        raise FwtopError("no packet could match this; nothing was installed", 2)
    return KernelObjects((), (), instead=NftRule(NETDEV, tuple(sets), tuple(lines)))


def sources_of(rule: Rule, family: int) -> tuple[str, list[NftSet]]:
    """Return the condition on the sender, "" where there is none, and its set, which counts by element."""
    sources, name = rule.match.sources, rule.list_name
    ip = "ip" if family == 4 else "ip6"
    if name is None:
        mine = address_set("src", family, of_family(sources, family, ()), counted=True)
        return (f"{ip} saddr @{set_of(rule.id, mine.role)}", [mine]) if mine.elements else ("", [])
    listed, shared = list_elements(sources, family), list_set_of(name, family)
    if says_more(listed):
        fields, found = list_set(family, listed, shared)
        return f"{fields} @{shared}", [found]
    return f"{ip} saddr @{shared}", [address_set("src", family, listed, counted=True, shared=shared)]


def conditions_of(rule: Rule, family: int) -> tuple[list[str] | None, list[NftSet]]:
    """Return all other conditions of one family, None where no packet of it can match."""
    words: list[str] = []
    sets: list[NftSet] = []
    ip = "ip" if family == 4 else "ip6"
    if rule.list_name is None and rule.match.sources and not of_family(rule.match.sources, family, ()):
        return None, []
    if rule.match.destinations:
        mine = of_family(rule.match.destinations, family, ())
        if not mine:
            return None, []
        sets.append(address_set("dst", family, mine))
        words.append(f"{ip} daddr @{set_of(rule.id, f'dst{family}')}")
    fields = field_words(rule.match, family)
    return (None, []) if fields is None else (words + fields, sets)


def _too_many(prefixes: Sequence[Prefix]) -> str | None:
    elements, limit = looked_up(prefixes), f"--via nftables takes up to {_PREFIXES:,}"
    if elements > _PREFIXES:
        return f"{elements:,} prefixes, but {limit}: use ipset or xdp"
    return why_crossing(prefixes)


def _words(rule: Rule) -> list[str] | None:
    """Limits and bytes have no verb that drops them here."""
    return early_words(rule) if rule.limit is None and not rule.match.payload else None


KIND = RuleKind(
    Kind.NFTABLES, Layer.NETDEV, build, _words,
    optional=("close_open",), place=" at netdev ingress", is_filter=True, reads_payload=True,
    takes_lists=True, too_many=_too_many, ladder="at netdev ingress (nftables)",
    elsewhere="puts this into a chain at nft netdev ingress",
    verbs=("block", "drop"), cost_ns=490.0, bench="drop {port} --via nftables",
)  # fmt: skip
