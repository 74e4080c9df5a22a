"""How many prefixes a rule takes, by what looks them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind

if TYPE_CHECKING:
    from fwtop.model.addresses.port_rows import PortRows

IPSET_PREFIXES = 5_000_000  # ipset takes 50 to 100 bytes of kernel memory for each
NFTABLES_PREFIXES = 10_000  # nft reads elements one by one, and the kernel keeps them in a tree
COMPILED_PREFIXES = {4: 25_000_000, 6: 5_000_000}  # by XDP and tc


def why_too_many(kind: Kind, prefixes: Sequence[Prefix]) -> str | None:
    """Return why a rule can't hold a list, and what can; None if it can."""
    elements = looked_up(prefixes)
    if kind is Kind.NFTABLES and elements > NFTABLES_PREFIXES:
        limit = f"--via nftables takes up to {NFTABLES_PREFIXES:,}"
        return f"{elements:,} prefixes, but {limit}: use ipset or xdp"
    if len(prefixes) <= IPSET_PREFIXES:
        return None
    if kind not in (Kind.XDP, Kind.TC):
        return (
            f"{len(prefixes):,} prefixes, but an ipset takes up to {IPSET_PREFIXES:,}: --via xdp takes more"
        )
    for family, most in COMPILED_PREFIXES.items():
        count = _count(prefixes, family)
        if count > most:
            return f"{count:,} IPv{family} prefixes, but an XDP or tc rule takes up to {most:,}"
    return None


def of_ports(sources: Sequence[Prefix]) -> TypeGuard[PortRows]:
    """Return whether these are entries with ports; loads no numpy where there are none."""
    return hasattr(sources, "single")


def looked_up(sources: Sequence[Prefix]) -> int:
    """Return how many elements a kernel has to hold: each port of an entry is one."""
    return sources.elements if of_ports(sources) else len(sources)


def _count(prefixes: Sequence[Prefix], family: int) -> int:
    from fwtop.model.addresses.prefix_rows import PrefixRows

    return PrefixRows.of(prefixes).count(family)
