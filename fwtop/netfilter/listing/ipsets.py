"""The sets of ipset, by their headers: how many elements there are, not which."""

from __future__ import annotations

from fwtop.model.ruleset import IPSET, ListedSet
from fwtop.model.text import safe_text
from fwtop.netfilter import ipset
from fwtop.netfilter.names import is_own_name

_NAME = 64


def ipset_sets() -> list[ListedSet]:
    """List all sets; raises FwtopError."""
    return [_listed(header) for header in ipset.headers()]


def _listed(header: ipset.Header) -> ListedSet:
    name = safe_text(header.name, limit=_NAME)
    return ListedSet(
        f"{IPSET} {name}",
        IPSET,
        header.family,
        name,
        safe_text(header.type, limit=_NAME),
        is_own_name(header.name),
        header.entries,
        header.size,
    )
