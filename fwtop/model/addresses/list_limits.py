"""What looks sources up: prefixes, or prefixes with ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from fwtop.model.addresses.address import Prefix

if TYPE_CHECKING:
    from fwtop.model.addresses.port_rows import PortRows


def of_ports(sources: Sequence[Prefix]) -> TypeGuard[PortRows]:
    """Return whether these are entries with ports; loads no numpy where there are none."""
    return hasattr(sources, "single")


def looked_up(sources: Sequence[Prefix]) -> int:
    """Return how many elements a kernel has to hold: each port of an entry is one."""
    return sources.elements if of_ports(sources) else len(sources)
