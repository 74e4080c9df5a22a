"""Where XDP sees the packets of an interface: a VLAN's, on the interface below it; a bond's, on its members.

A VLAN device has no XDP of its own, and packets reach it long after the driver. A bond hands an XDP program
on to its members where they can (Linux 5.15, drivers/net/bonding/bond_main.c); else each member gets one. A
bridge is left as it is: its ports carry other machines' packets, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from fwtop.collect.links import Link

_DEEPEST = 8  # VLANs in VLANs that are followed


@dataclass(frozen=True, slots=True)
class Target:
    """An interface for an XDP program. `above` was asked for, if that is another one."""

    link: Link
    above: str = ""
    members: tuple[Link, ...] = ()  # of a bond: instead of it, when it takes no program


def targets(links: list[Link], chosen: list[Link]) -> list[Target]:
    """Return where programs for the chosen interfaces go, each place once."""
    by_index = {link.index: link for link in links}
    found: dict[int, Target] = {}
    for link in chosen:
        low = _below(by_index, link)
        members = tuple(one for one in links if one.master == low.index) if low.kind == "bond" else ()
        if low.index not in found or low is link:
            found[low.index] = Target(low, "" if low is link else link.name, members)
    return list(found.values())


def _below(by_index: dict[int, Link], link: Link) -> Link:
    for _ in range(_DEEPEST):
        lower = by_index.get(link.link) if link.kind == "vlan" else None
        if lower is None:
            return link
        link = lower
    return link
