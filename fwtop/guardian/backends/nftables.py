"""Drop at netdev ingress: before the stack, on any driver, where a machine has no XDP."""

from __future__ import annotations

from fwtop.guardian.backends.common import families_asked, list_elements
from fwtop.guardian.objects.nft_words import (
    NETDEV,
    NftRule,
    NftSet,
    address_set,
    list_set_of,
    port_set,
    set_of,
)
from fwtop.guardian.objects.spec import KernelObjects
from fwtop.guardian.rules.prefix_lists import of_family
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.list_limits import NFTABLES_PREFIXES, looked_up, of_ports
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.render.nft_fields import field_words


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> KernelObjects:  # noqa: ARG001 - the allow-list comes first
    """Return sets and lines; raises FwtopError (code 2) on what netdev ingress can't say."""
    if rule.limit is not None:
        raise FwtopError("netdev ingress has no rate limit here: use fwtop limit; nothing was installed", 2)
    if looked_up(rule.match.sources) > NFTABLES_PREFIXES:
        raise FwtopError(
            f"--via nftables takes up to {NFTABLES_PREFIXES:,} prefixes: use ipset or xdp; "
            "nothing was installed",
            2,
        )
    sets: list[NftSet] = []
    lines: list[tuple[str, int, str, str]] = []
    for family in families_asked(rule):
        words, own_sets = _conditions(rule, family)
        if words is not None:
            sets += own_sets
            lines.append(("rules", family, " ".join(words), "counter drop"))
    if not lines:
        raise FwtopError("no packet could match this; nothing was installed", 2)
    return KernelObjects((), (), nft=NftRule(NETDEV, tuple(sets), tuple(lines)))


def _conditions(rule: Rule, family: int) -> tuple[list[str] | None, list[NftSet]]:
    """Return the conditions of one family, None where no packet of it can match."""
    words: list[str] = []
    sets: list[NftSet] = []
    ip = "ip" if family == 4 else "ip6"
    name = rule.list_name
    if name is not None:
        mine, shared = list_elements(rule.match.sources, family), list_set_of(name, family)
        if of_ports(mine):
            sets.append(port_set(family, mine, shared))
            words.append(f"{ip} saddr . meta l4proto . th dport @{shared}")
        else:
            sets.append(address_set("src", family, mine, counted=True, shared=shared))
            words.append(f"{ip} saddr @{shared}")
    for side, role, given in (
        ("saddr", "src", rule.match.sources if name is None else ()),
        ("daddr", "dst", rule.match.destinations),
    ):
        if not given:
            continue
        mine = of_family(given, family, ())
        if not mine:
            return None, []
        sets.append(address_set(role, family, mine, counted=role == "src"))
        words.append(f"{ip} {side} @{set_of(rule.id, f'{role}{family}')}")
    fields = field_words(rule.match, family)
    return (None, []) if fields is None else (words + fields, sets)
