"""What is said of a rule besides the guard's verdict: who is cut although allowed, and what it can't meet.

Clients of mosh roam, so no address can be put on the allow-list for them. On a machine that bridges,
br_netfilter decides what of it rules in netfilter meet.
"""

from __future__ import annotations

from collections.abc import Collection

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import mosh_ports
from fwtop.kernel.bridges import Bridge, crossed
from fwtop.kernel.links import readable_links, receiving_links
from fwtop.model.addresses.coverage import listed
from fwtop.model.addresses.roles import Role
from fwtop.model.rule import Rule
from fwtop.model.traffic.protocols import UDP
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import drops_nothing, of


def mosh_warning(rule: Rule, allow: AllowList) -> tuple[str, ...]:
    """Say that a rule cuts open mosh sessions; empty where it can't, or where there are none."""
    if rule.parts:
        return tuple(dict.fromkeys(line for part in rule.parts for line in mosh_warning(part, allow)))
    match = rule.match
    no_udp = match.protocol not in (None, UDP) or match.icmp_type is not None or match.reads_tcp
    # An open session of a protected port
    goes_on = rule.protection is not None and not rule.protection.strict
    if drops_nothing(rule) or goes_on or no_udp or match.sport is not None or match.payload:
        return ()
    if match.sources:
        index = listed(match.sources)
        peers = (entry.prefix for entry in allow.entries if entry.role is Role.SSH)
        if all(index.overlapping(peer) is None for peer in peers):
            return ()
    ports = sorted(port for port in mosh_ports() if match.dport in (None, port))
    if not ports:
        return ()
    shown = ", ".join(map(str, ports[:3]))
    return (f"mosh sessions on UDP port {shown} may be cut: /etc/fwtop/allow can list your address",)


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
