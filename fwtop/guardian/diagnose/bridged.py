"""Rules in netfilter on a machine that bridges: br_netfilter decides what of it they meet."""

from __future__ import annotations

from collections.abc import Collection

from fwtop.kernel.bridges import Bridge, crossed
from fwtop.kernel.links import readable_links, receiving_links
from fwtop.model.rule import Rule
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of


def bridge_notes(rule: Rule, interfaces: Collection[str]) -> tuple[str, ...]:
    """Say which bridged packets a rule can't meet, on the bridges of the watched interfaces."""
    if rule.parts:
        found = (note for part in rule.parts for note in bridge_notes(part, interfaces))
        return tuple(dict.fromkeys(found))
    links = readable_links()
    chosen = receiving_links(links, interfaces)
    layer = of(rule.kind).layer
    if layer <= Layer.NETDEV:  # at the ports, before a bridge decides
        masters = {link.index for link in chosen}
        bridges = [bridge for bridge in crossed(links, chosen) if bridge.link.index in masters]
        return tuple(_beside(bridge) for bridge in bridges if not _has_port(bridge, masters))
    if layer is Layer.NOWHERE:
        return ()
    return tuple(note for bridge in crossed(links, chosen) if (note := _unseen(bridge, rule)))


def _has_port(bridge: Bridge, indexes: set[int]) -> bool:
    return any(port.index in indexes for port in bridge.ports)


def _beside(bridge: Bridge) -> str:
    return (
        f"it meets what bridge {bridge.words} hands to this machine, not what it passes on: watch a port, "
        f"fwtop -i {bridge.ports[0].name}, and the rule goes there"
    )


def _unseen(bridge: Bridge, rule: Rule) -> str:
    """Say what netfilter does not see of a bridge; "" if nothing."""
    families = sorted(set(rule.match.families) - bridge.netfilter)
    if not families:
        return ""
    switch = " and ".join(f"bridge-nf-call-ip{'' if family == 4 else '6'}tables" for family in families)
    instead = of(rule.kind).on_bridges
    return (
        f"bridge {bridge.words} passes packets on without netfilter (net.bridge.{switch} is 0): this rule "
        f"meets only what comes to this machine itself" + (f"; {instead}" if instead else "")
    )
