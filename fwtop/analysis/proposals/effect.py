"""The effect of rules, replayed on samples and on normal traffic, and what active ones leave of attacks.

Connection tracking reassembles datagrams (nf_defrag, at priority -400) before the first rule of netfilter
sees them, so that such a rule drops whole datagrams by what their first fragment holds, and meets no fragment
at all. Compiled rules and nftables at ingress stand before that: they see each fragment alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.proposals.census import Aim
from fwtop.analysis.proposals.limits import fills_table, replayed, sustained
from fwtop.analysis.proposals.matching import (
    always_pass,
    bars_newcomers,
    in_prefixes,
    limit_groups,
    match_rows,
)
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, UDP, Rows, Traffic, mix
from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.harm import ClientHarm
from fwtop.model.rule import Level, Match, RateLimit, Rule
from fwtop.model.traffic.packets import F64, U64, Fragment, Mask, PacketBatch
from fwtop.render.numbers import percent
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import as_kept, drops_nothing, of
from fwtop.rules.overlap import includes

_EXAMPLES = 4
_FOLDS = np.uint64(4)  # one packet in this many is held out
_HELD_LEAST = 20  # if fewer packets are held out, all packets of the attack are used
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 47: "gre", 50: "esp", 58: "icmpv6"}
_MOST_RULES = 16  # each is replayed on all packets
_LONG_LIST = 10_000  # sources: searching longer lists takes too long
_HARDLY = 0.05  # of an attack: no rule is worth it for so little
_STOPPED = 0.5  # of a packet's like, by a limit: what it leaves counts as left
_MAIN = 0.5  # of what is left of an attack: the packets that are mostly let pass must be that much of it


class Harm(Struct, frozen=True):
    """The effect of a rule on normal traffic."""

    share: float
    pps: float
    examples: tuple[str, ...]
    part: F64  # of each normal packet, 0 to 1


def stopped(match: Match, limit: RateLimit | None, traffic: Traffic) -> F64:
    """Return for each arrived row the share (0 to 1) that the rule would drop."""
    hit = match_rows(match, traffic.packets) & ~always_pass(traffic.packets)
    part = hit.astype(np.float64)
    if limit is not None:
        rows = np.flatnonzero(hit)
        part[rows] = sustained(limit, traffic.packets, rows, traffic.weight[rows], traffic.seconds)
    return part


def stopped_by(rule: Rule, context: AnalysisContext, traffic: Traffic) -> F64:
    """Return `stopped` for any kind of rule; for SYN proxies the handshakes that nobody finishes.

    `traffic` is that of the context or a subset; a proxy is measured on all of it.
    """
    if rule.parts:
        parts = [stopped_by(part, context, traffic) for part in rule.parts if not drops_nothing(part)]
        return np.max(parts, axis=0) if parts else np.zeros(len(traffic))
    if rule.connections is not None:  # packets don't show it (analysis/connections.py)
        return np.zeros(len(traffic))
    if not of(rule.kind).answers:
        part = stopped(rule.match, as_kept(rule), traffic)
        return of_datagrams(part, rule, traffic) if sees_datagrams(rule, context) else part
    packets, tcp = context.traffic.packets, context.tcp
    opening = match_rows(replace(rule.match, tcp_flags=(SYN | ACK, SYN)), packets) & ~tcp.real
    # Who was named by a forger refuses the answers to it, which then end at the proxy, too
    refusing = match_rows(rule.match, packets) & tcp.rst & ~tcp.real & context.traffic.of_sources(opening)
    return np.asarray(opening | refusing, np.float64)


def harm_by(rule: Rule, normal: Normal, traffic: Traffic, allowed: Mask | None = None) -> Harm:
    """Return `harm` for any kind of rule: real clients pass a proxy, but not a full table.

    Whom a limit of connections hits, sockets tell (analysis/connections.py).
    """
    if rule.parts:
        parts = [harm_by(part, normal, traffic, allowed) for part in rule.parts if not drops_nothing(part)]
        return _together(parts, normal)
    if of(rule.kind).answers or rule.connections is not None:
        return _none(normal)
    if fills_table(rule, traffic):
        part = match_rows(rule.match, normal.packets).astype(np.float64)
        pps, total = float((part * normal.pps).sum()), normal.total_pps
        return Harm(pps / total if total else 1.0, pps, ("every new client, once its table is full",), part)
    return harm(rule.match, as_kept(rule), normal, traffic, allowed)


def clients_harmed(
    rule: Rule, cost: Harm, now: F64, normal: Normal, aim: Aim, *, allowed: Sequence[Prefix] = ()
) -> ClientHarm:
    """Count the known clients that a rule hits, usually or `now`; `aim` is what it is to protect."""
    usually = normal.census.lost(rule, cost.part, normal.packets)
    return normal.census.harm(np.maximum(usually, now), aim, allowed)


def held_out(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark those of the rows on which block lists are measured; the others choose them.

    A list that is measured on the packets that chose it holds sources seen once, which won't be seen again,
    and promises too much. The mark depends on the packet alone, so that proposal and preview agree; fragments
    of one datagram stay together.
    """
    whole = packets.fragment[rows] == Fragment.NONE
    own = np.where(whole, packets.time_ns[rows].view(np.uint64), packets.ip_id[rows].astype(np.uint64))
    return np.asarray(mix(own, packets.src_lo[rows]) % _FOLDS == 0)


def measured_on(match: Match, traffic: Traffic, rows: Rows) -> Rows:
    """Return those of the rows that say how well a match works: for block lists the held-out ones."""
    if not match.sources:
        return rows
    held = rows[held_out(traffic.packets, rows)]
    return held if len(held) >= _HELD_LEAST else rows


def share_stopped(
    dropped: F64, match: Match, traffic: Traffic, finding: Finding, rows: Rows, *, before: F64 | None = None
) -> float:
    """Return the share (0 to 1) of an attack that is stopped: of its packets, or of its requests.

    `dropped` has the dropped share of each row of the traffic, `rows` are the finding's. Dropping the
    requests stops a flood of requests over real connections; its other packets still arrive. With `before`,
    what other rules stop, it is the share of what they leave.
    """
    if finding.requests and match.payload:
        rows = rows[traffic.packets.payload_length[rows] > 0]
    return share_of(dropped, traffic, measured_on(match, traffic, rows), before)


def share_of(dropped: F64, traffic: Traffic, rows: Rows, before: F64 | None = None) -> float:
    """Return the share (0 to 1) of the rows' packets, or of what `before` leaves of them, that is dropped."""
    weight, part = traffic.weight[rows], dropped[rows]
    if before is not None:  # a packet that both would drop is dropped once
        weight, part = weight * (1.0 - before[rows]), np.maximum(part - before[rows], 0.0)
        part = np.divide(part, 1.0 - before[rows], out=np.zeros(len(rows)), where=before[rows] < 1.0)
    total = float(weight.sum())
    return float((part * weight).sum()) / total if total else 0.0


def share_of_sources(match: Match, traffic: Traffic, rows: Rows) -> float:
    """Return `share_of` for a match of sources alone, without looking at other packets than these rows."""
    packets, weight = traffic.packets, traffic.weight[rows]
    columns = packets.family[rows], packets.src_hi[rows], packets.src_lo[rows]
    hit = in_prefixes(*columns, match.sources) & ~always_pass(packets)[rows] & (columns[0] != 0)
    total = float(weight.sum())
    return float((hit * weight).sum()) / total if total else 0.0


def dropped_pps(dropped: F64, match: Match, traffic: Traffic, rows: Rows) -> float:
    """Return the packets per second that are dropped of the rows."""
    return share_of(dropped, traffic, measured_on(match, traffic, rows)) * traffic.pps(rows)


def harm(
    match: Match, limit: RateLimit | None, normal: Normal, traffic: Traffic, allowed: Mask | None = None
) -> Harm:
    """Measure the share of normal traffic that the rule would drop, with the most affected flows.

    A limit is shared with attackers in the same prefixes. `allowed` marks the normal packets that pass by the
    allow-list.
    """
    packets = normal.packets
    if normal.guess and match.protocol != UDP and bars_newcomers(match, limit):
        # Certain although not measured: unclaimed traffic contains no SYNs
        port = f" to TCP port {match.dport}" if match.dport is not None else ""
        part = match_rows(replace(match, tcp_flags=None), packets).astype(np.float64)
        return Harm(1.0, normal.total_pps, (f"every new connection{port}",), part)
    if len(packets) == 0:
        return _none(normal)
    hit = match_rows(match, packets)
    if allowed is not None:
        hit = hit & ~allowed
    part = hit.astype(np.float64)
    if limit is not None:
        rows = np.flatnonzero(hit)
        alone = replayed(limit, packets, rows, normal.pps[rows] * normal.seconds, normal.seconds)
        part[rows] = np.maximum(alone, _crowded_out(match, limit, packets, rows, traffic))
    else:
        part = np.maximum(part, _lost_connections(match, hit, packets, normal.pps))
    pps = float((part * normal.pps).sum())
    total = normal.total_pps
    return Harm(pps / total if total else 0.0, pps, _examples(part, normal), part)


def _together(parts: Sequence[Harm], normal: Normal) -> Harm:
    """Return the harm of several rules: a packet that more than one drops is dropped once."""
    if len(parts) < 2:
        return parts[0] if parts else _none(normal)
    part = np.max([one.part for one in parts], axis=0)
    pps, total = float((part * normal.pps).sum()), normal.total_pps
    certain = max(one.share for one in parts)  # what no packet shows
    return Harm(max(pps / total if total else 0.0, certain), pps, _examples(part, normal), part)


def _none(normal: Normal) -> Harm:
    return Harm(0.0, 0.0, (), np.zeros(len(normal.packets)))


def _crowded_out(match: Match, limit: RateLimit, packets: PacketBatch, rows: Rows, traffic: Traffic) -> F64:
    """Return the share of normal rows lost because attackers in the same prefix exhaust its limit."""
    now = np.flatnonzero(match_rows(match, traffic.packets))
    if len(now) == 0 or len(rows) == 0:
        return np.zeros(len(rows))
    lost = sustained(limit, traffic.packets, now, traffic.weight[now], traffic.seconds)
    keys, first = np.unique(limit_groups(limit, traffic.packets, now), return_index=True)
    mine = limit_groups(limit, packets, rows)
    at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
    return np.asarray(np.where(keys[at] == mine, lost[first[at]], 0.0), np.float64)


def _lost_connections(match: Match, hit: Mask, packets: PacketBatch, pps: F64) -> F64:
    """Spread the loss of a dropped SYN or request over all packets of its connection.

    Among the connections within the rule's addresses and ports, the share lost is that of the SYNs, or
    packets with data, that are dropped: retransmissions are dropped again. A lost bare ACK or FIN costs
    nothing. Dropped packets belong to these connections, so the others account for the rest of the loss.
    """
    nothing = np.zeros(len(packets))
    if match.protocol not in (None, TCP):
        return nothing
    scope = Match(match.sources, match.destinations, match.family, TCP, match.sport, match.dport)
    within = match_rows(scope, packets)
    opening = within & ((packets.tcp_flags & (SYN | ACK)) == SYN)
    carrying = within & (packets.payload_length > 0)
    parts = [
        float(pps[kind & hit].sum()) / float(pps[kind].sum()) for kind in (opening, carrying) if kind.any()
    ]
    whole, struck = float(pps[within].sum()), float(pps[within & hit].sum())
    rest = max(parts, default=0.0) * whole - struck
    return np.asarray(np.where(within & ~hit, rest / (whole - struck), 0.0)) if rest > 0 else nothing


def _examples(part: F64, normal: Normal) -> tuple[str, ...]:
    rows = np.flatnonzero(part > 0.005)
    if len(rows) == 0:
        return ()
    packets = normal.packets
    service = np.where(packets.dport[rows] <= packets.sport[rows], packets.dport[rows], packets.sport[rows])
    keys = mix(mix(packets.src_hi[rows], packets.src_lo[rows]), service.astype(np.uint64))
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    lost = np.bincount(inverse, part[rows] * normal.pps[rows])
    total = normal.total_pps
    sentences = []
    for group in np.argsort(lost)[::-1][:_EXAMPLES].tolist():
        row = int(rows[first[group]])
        who = format_address(int(packets.family[row]), int(packets.src_hi[row]), int(packets.src_lo[row]))
        protocol = _PROTOCOLS.get(int(packets.protocol[row]), f"protocol {packets.protocol[row]}")
        port = int(service[first[group]])
        what = f"{protocol} port {port}" if port else protocol
        sentences.append(f"{who} ({what}): {percent(lost[group] / total, 2)} of normal traffic")
    return tuple(sentences)


def sees_datagrams(rule: Rule, context: AnalysisContext) -> bool:
    """Check for a rule behind reassembly: one of netfilter on a machine that tracks connections."""
    table, match = context.counters.conntrack, rule.match
    by_address = not (match.payload or match.sport or match.dport or match.tcp_flags or match.fragment)
    if by_address:  # which each fragment has
        return False
    return (
        of(rule.kind).layer >= Layer.RAW and not drops_nothing(rule) and table is not None and table.count > 0
    )


def of_datagrams(dropped: F64, rule: Rule, traffic: Traffic) -> F64:
    """Return the dropped share of each row if whole datagrams are dropped.

    Later fragments share the fate of their first one, or, where that wasn't sampled, the mean fate of their
    sender's first fragments, or of all.
    """
    if rule.match.fragment is not None:
        return dropped * 0.0 if rule.match.fragment else dropped
    packets = traffic.packets
    later = np.flatnonzero(packets.fragment == Fragment.LATER)
    first = np.flatnonzero(packets.fragment == Fragment.FIRST)
    if not len(later) or not len(first):
        return dropped
    result = dropped.copy()
    sender = mix(traffic.source_key, packets.protocol.astype(np.uint64))
    datagram = mix(sender ^ traffic.dest_key, packets.ip_id.astype(np.uint64))
    weight = traffic.weight[first]
    fate = np.full(len(later), float(weight @ dropped[first] / weight.sum()))
    for keys in (sender, datagram):  # the closest kin last
        known, mean = _means(keys[first], dropped[first], weight)
        place = np.minimum(np.searchsorted(known, keys[later]), len(known) - 1)
        fate = np.where(known[place] == keys[later], mean[place], fate)
    result[later] = fate
    return result


def _means(keys: U64, values: F64, weight: F64) -> tuple[U64, F64]:
    """Return the sorted distinct keys, and the weighted mean of the values of each."""
    known, place = np.unique(keys, return_inverse=True)
    sums = np.bincount(place, values * weight, len(known))
    return known, np.asarray(sums / np.bincount(place, weight, len(known)), np.float64)


class Remainder(Struct, frozen=True):
    """What is left of an attack: `finding` without the packets that active rules stop."""

    whole: Finding
    finding: Finding
    share: float  # of the attack's packets, 0 to 1
    stopped: F64 | None = None  # of each arrived packet the share (0 to 1) that active rules stop

    @property
    def is_worth_a_rule(self) -> bool:
        """Whether more is left than rules let pass anyway."""
        return self.share > _HARDLY and len(self.finding.rows) > 0


def replayable(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules that samples can be replayed on: they drop, and their sources are known here.

    The guardian keeps derived lists for itself, and whom a protected port lets in.
    """
    known = [rule for rule in rules if rule.origin is None and not drops_nothing(rule)]
    known = [rule for rule in known if rule.protection is None or rule.protection.level is Level.CLOSED]
    return tuple(rule for rule in known if len(rule.match.sources) <= _LONG_LIST)[:_MOST_RULES]


def stopped_by_all(rules: Sequence[Rule], context: AnalysisContext) -> F64:
    """Return for each arrived row the share (0 to 1) that the rules drop together."""
    traffic = context.traffic
    each = [stopped_by(rule, context, traffic) for rule in rules]
    return np.asarray(np.max(each, axis=0)) if each else np.zeros(len(traffic))


class Remaining(Struct, frozen=True):
    """The active rules, and what they leave of each attack of a window."""

    rules: tuple[Rule, ...]
    attacks: tuple[Remainder, ...]

    @staticmethod
    def of(context: AnalysisContext, rules: Sequence[Rule], *, only_driver: bool = False) -> Remaining:
        """Replay `rules` on a judged window.

        What shows in sockets or in the connection table is never reduced: rules against it are no filters.
        With `only_driver` only rules in the driver count: if packets are lost before it, others are too late.
        """
        chosen = [
            rule for rule in replayable(rules) if of(rule.kind).layer is Layer.DRIVER or not only_driver
        ]
        whole = tuple(Remainder(finding, finding, 1.0) for finding in context.findings)
        if not chosen:
            return Remaining(tuple(rules), whole)
        dropped = stopped_by_all(chosen, context)
        return Remaining(tuple(rules), tuple(_remainder(context, one, dropped) for one in whole))

    def does(self, rule: Rule | None) -> bool:
        """Tell whether an active rule does what another would."""
        return rule is not None and any(includes(active, rule) for active in self.rules)


def _remainder(context: AnalysisContext, whole: Remainder, stopped: F64) -> Remainder:
    finding, rows = whole.whole, whole.whole.rows
    if finding.state or finding.held is not None or len(rows) == 0:
        return whole
    share = 1.0 - share_of(stopped, context.traffic, rows)
    passes = stopped[rows] < _STOPPED
    through = context.traffic.weight[rows] * (1.0 - stopped[rows])
    if float(through[passes].sum()) < _MAIN * float(through.sum()):
        passes = stopped[rows] < 1.0  # a limit lets a part of each source pass
    if passes.all() and share == 1.0:
        return whole
    return Remainder(finding, replace(finding, rows=rows[passes]), share, stopped)
