"""Whom a rule reaches beyond the attack: addresses that did not attack, and all clients of a service.

What a baseline has not seen is not empty. Of a network that holds no known client, a part of those who come
next may still be in it: that is harm, which no packet shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.proposals.effect import bars_newcomers
from fwtop.analysis.proposals.matching import in_prefixes
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, UDP, mix
from fwtop.model.addresses.address import covered
from fwtop.model.harm import Reach
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import F64
from fwtop.rules.kinds import drops_nothing, of

# Addresses of IPv4 that send anything within a year: Richter et al., Beyond Counting, IMC 2016. For want of a
# count of IPv6, one of its networks of 64 bits counts as one of them.
_IN_USE = 1.2e9
_TRUST = 1_000  # known clients that say as much about where the next one is as the map of all addresses
_MOST, _ALL = 0.5, 0.95  # of what clients of a service open it with
_NAMES = {TCP: "tcp", UDP: "udp"}


def reach_of(
    context: AnalysisContext, findings: Sequence[Finding], rule: Rule, part: F64, normal: Normal
) -> Reach:
    """Return whom a rule against these attacks reaches; `part` is what it drops of each normal packet."""
    rules = [one for one in rule.parts or (rule,) if not drops_nothing(one)]
    closed = next(filter(None, (_closed(findings, one, part, normal) for one in rules)), ("", ""))
    sources = rule.match.sources
    if not sources or rule.protection is not None:
        return Reach(0, 0, *closed)
    addresses = covered((sources,), 4) + (covered((sources,), 6) + (1 << 64) - 1 >> 64)
    packets, none = context.traffic.packets, np.zeros(0, np.intp)
    rows = np.unique(np.concatenate([none, *(one.rows for one in findings)]))
    columns = packets.family[rows], packets.src_hi[rows], packets.src_lo[rows]
    rows = rows[in_prefixes(*columns, sources)]
    hosts = packets.src_hi[rows], np.where(packets.family[rows] == 4, packets.src_lo[rows], 0)
    attackers = len(np.unique(mix(*hosts)))
    return Reach(addresses, min(attackers, addresses), *closed)


def unseen_share(rule: Rule, reach: Reach, normal: Normal) -> float:
    """Return the share (0 to 1) of clients to come that a block hits by the addresses that it adds.

    The mean of a Dirichlet process: its base is all addresses in use, and where no known client is, only that
    counts, the less the more clients are known.
    """
    if rule.limit is not None or rule.connections is not None:
        return 0.0
    known = 0 if normal.guess else len(np.unique(normal.census.clients.source))
    return min(1.0, (reach.addresses - reach.attackers) / _IN_USE) * _TRUST / (_TRUST + known)


def _closed(findings: Sequence[Finding], rule: Rule, part: F64, normal: Normal) -> tuple[str, str]:
    """Return the service that a rule closes, and to whom; empty if it closes none."""
    match = rule.match
    protocol = match.protocol or (TCP if match.tcp_flags is not None else 0)
    aims = (one.match.dport for one in findings if one.match.protocol == protocol)
    port = match.dport or next(filter(None, aims), 0)
    limited = rule.limit is not None or rule.connections is not None
    if match.sources or limited or of(rule.kind).answers or protocol not in _NAMES or not port:
        return "", ""
    packets, name = normal.packets, f"{port}/{_NAMES[protocol]}"
    opening = (packets.protocol == protocol) & (packets.dport == port)
    syns = opening & ((packets.tcp_flags & (SYN | ACK)) == SYN)
    opening = syns if protocol == TCP and syns.any() else opening
    whole = float(normal.pps[opening].sum())
    if whole:
        lost = float((part * normal.pps)[opening].sum()) / whole
        return (name, "everybody" if lost >= _ALL else "most clients") if lost > _MOST else ("", "")
    served = len(normal.doors) > 0 and len(normal.doors.at(protocol << 16 | port)) > 1
    known = among(normal.clients.door, np.array([protocol << 16 | port], np.uint32)).any()
    barred = match.dport is not None and bars_newcomers(match, rule.limit) and (served or bool(known))
    return (name, "everybody") if barred else ("", "")
