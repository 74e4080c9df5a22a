"""Which rules need connection tracking, which a notrack rule takes away.

An untracked packet has no entry: NAT never sees it, and matches on its state see UNTRACKED, which
`--ctstate ESTABLISHED` is not (iptables-extensions(8), conntrack and CT).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from fwtop.kernel.procfs import routed_families
from fwtop.model.rule import Match
from fwtop.model.traffic.protocols import TCP, protocol_name
from fwtop.netfilter.iptables import NFT, TABLES, Variant
from fwtop.netfilter.saved import Line, Packets, may_be_about

STATEFUL = ("conntrack", "state", "connmark", "connlimit", "connbytes", "connlabel", "helper")  # matches
STATEFUL_TARGETS = frozenset({"CONNMARK", "CONNSECMARK", "SYNPROXY"})
TRANSLATES = frozenset({"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"})
PLAIN = frozenset({"new", "established", "related", "invalid", "untracked"})  # states
ERRORS_MATTER = frozenset({"established", "related", "invalid"})  # states that ICMP errors have
_CLIENT_PORT = 40_000  # as clients choose them; a rule that names it is about answers


def packets_of(match: Match, *, incoming: bool) -> Packets:
    """Return what is known of a service's packets, or (not `incoming`) of its answers."""
    ports = (match.sport, match.dport) if incoming else (match.dport, match.sport)
    return Packets(match.protocol, *ports, match.families)


def stands_for(match: Match, *, incoming: bool) -> frozenset[str]:
    """Return the states that a service's packets have while they are tracked.

    A segment to a TCP service is new if it is a bare SYN, else established. A datagram to a UDP service is
    always judged as new: taken for established it would pass whatever lets only some clients in.
    """
    if not incoming:
        return frozenset({"established"})
    return frozenset({"new", "established"} if match.protocol == TCP else {"new"})


def service_name(match: Match) -> str:
    """Return a service's name: tcp/80."""
    return f"{protocol_name(match.protocol or 0)}/{match.dport}"


def why(states: Iterable[str], match: Match) -> str:
    """Say in words what a line beside one on states is for."""
    return f"stands for {','.join(sorted(states))} where {service_name(match)} is not tracked"


def needs_tracking(line: Line) -> bool:
    """Return whether a rule of iptables works on tracked packets only."""
    rule = line.arguments
    if rule.target_name in TRANSLATES | STATEFUL_TARGETS or rule.named(*STATEFUL):
        return True
    return rule.target_name == "CT" and "--helper" in rule.target


def may_meet(line: Line, match: Match) -> bool:
    """Return whether a rule can be about packets of a match or their answers; unclear counts as yes."""
    answers = packets_of(match, incoming=False)
    if answers.sport is not None and answers.dport is None:
        answers = replace(answers, dport=_CLIENT_PORT)
    return any(may_be_about(line.arguments, some) for some in (packets_of(match, incoming=True), answers))


def is_foreign(table: str, variant: Variant) -> bool:
    """Whether an nftables table, "FAMILY NAME", is neither fwtop's nor one that iptables lists."""
    family, _, name = table.partition(" ")
    if name.startswith("fwtop"):
        return False
    return not (variant.name == NFT and family in ("ip", "ip6") and name in TABLES)


def forwarding(match: Match) -> tuple[str, ...]:
    """Answers to forwarded packets come in by PREROUTING, where nothing tells them from requests."""
    which = " and ".join(f"IPv{family}" for family in routed_families() if family in match.families)
    if not which:
        return ()
    return (f"this host forwards {which}: answers to forwarded packets stay tracked, and appear as INVALID",)
