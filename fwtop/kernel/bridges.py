"""Bridges: what passes between their ports never reaches this machine's IP layer.

br_netfilter shows it to iptables and nftables all the same where it is told to, for all bridges or for one
(Documentation/networking/ip-sysctl.rst, bridge-nf-call-iptables; net/bridge/br_netfilter_hooks.c).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from fwtop.kernel.links import Link
from fwtop.model.text import safe_text

_SWITCHES = {4: "bridge-nf-call-iptables", 6: "bridge-nf-call-ip6tables"}
_SYSCTLS = Path("/proc/sys/net/bridge")
_VIRTUAL = frozenset({"veth", "tun"})  # containers and virtual machines
_SHOWN = 4


class Bridge(Struct, frozen=True):
    """A bridge that passes packets between ports that are up."""

    link: Link
    ports: tuple[Link, ...]
    netfilter: frozenset[int]  # the families that br_netfilter shows to netfilter

    @property
    def words(self) -> str:
        """The bridge with its ports, to print."""
        names = [safe_text(port.name) for port in self.ports[:_SHOWN]]
        more = len(self.ports) - len(names)
        return f"{safe_text(self.link.name)} ({', '.join(names)}{f' and {more} more ports' if more else ''})"


def list_bridges(links: Sequence[Link]) -> list[Bridge]:
    """Return the bridges of this namespace that have two ports or more to pass packets between."""
    everywhere = {family for family, name in _SWITCHES.items() if _is_on(name)}
    found = []
    for link in links:
        ports = tuple(port for port in links if port.master == link.index and port.up)
        if link.kind == "bridge" and link.up and len(ports) > 1:
            found.append(Bridge(link, ports, frozenset(everywhere | link.bridge_netfilter)))
    return found


def crossed(links: Sequence[Link], chosen: Sequence[Link]) -> list[Bridge]:
    """Return the bridges that pass on what arrives on chosen interfaces, or beside it.

    A bridge that is chosen itself receives only what is for this machine.
    """
    indexes = {link.index for link in chosen}
    return [
        bridge
        for bridge in list_bridges(links)
        if bridge.link.index in indexes or any(port.index in indexes for port in bridge.ports)
    ]


def beside_netfilter(links: Sequence[Link], chosen: Sequence[Link]) -> list[int]:
    """Return the families whose packets the bridges of chosen interfaces pass on without netfilter."""
    bridges = crossed(links, chosen)
    return [family for family in _SWITCHES if any(family not in bridge.netfilter for bridge in bridges)]


def unwatched(links: Sequence[Link], chosen: Sequence[Link]) -> list[Bridge]:
    """Return the bridges whose traffic passes by the chosen interfaces unseen.

    A bridge of containers or virtual machines only is reached through this machine, where it was seen.
    """
    indexes = {link.index for link in chosen}
    return [
        bridge
        for bridge in list_bridges(links)
        if not any(port.index in indexes for port in bridge.ports)
        and (bridge.link.index in indexes or sum(port.kind not in _VIRTUAL for port in bridge.ports) > 1)
    ]


def _is_on(name: str) -> bool:
    try:
        return _SYSCTLS.joinpath(name).read_text(encoding="ascii").strip() != "0"
    except OSError:  # br_netfilter is not loaded
        return False
