"""Who may be cut by a rule though nobody there attacks, and whom it reaches beyond the attack.

A forger sees no answers, so nobody behind a forged address completes a handshake with the kernel. Without
that evidence an address says nothing about who attacks: then a rule is harmless only if it drops nothing that
known clients send, now or usually, and chooses by no address that anybody could write into a packet.

What a baseline has not seen is not empty. Of a network that holds no known client, a part of those who come
next may still be in it: that is harm, which no packet shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.connections import flows_of, flows_of_packets
from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.proposals.matching import bars_newcomers, in_prefixes, match_rows
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, UDP, Rows, mix
from fwtop.model.addresses.address import Prefix, covered, format_address
from fwtop.model.harm import Reach, Who
from fwtop.model.rule import RANGES, Match, Rule
from fwtop.model.traffic.packets import F64, U8, U64, Mask, PacketBatch
from fwtop.rehearsal.rehearse import Rehearsal
from fwtop.render.numbers import plural, utc
from fwtop.rules.kinds import drops_nothing, of

_MOST = 0.5  # of an attack's packets that completed connections must carry
_TELL = 24  # connections that connection tracking was asked about: a share to ±20 percentage points
_AGREE = 0.5  # of the openings of its sources that the kernel must count as handshakes
_LOST = 0.05  # of what a peer sends in one protocol to one port: it is cut
_NAMED = 2
_DAY = 86_400.0
_TELLING = 60  # clients: if none of so many has a TTL, 95 % of others don't either (rule of three)


def has_return_path(context: AnalysisContext, finding: Finding) -> bool:
    """Test whether most of an attack's packets belong to connections that have been completed.

    Numbers that advance can be forged; open sockets, the kernel's count of handshakes, and entries of
    connection tracking that both ends have answered cannot. In a capture there are only the numbers.
    """
    note = f"return path of {finding.key}"
    if note not in context.notes:
        context.notes[note] = finding.held is not None or _returns(context, finding)
    return bool(context.notes[note])


def _returns(context: AnalysisContext, finding: Finding) -> bool:
    traffic, rows, tcp = context.traffic, finding.rows, context.tcp
    proven = tcp.real if not traffic.live else np.zeros(len(traffic), np.bool_)
    if traffic.live and context.sockets is not None:
        proven = among(flows_of_packets(traffic.packets), flows_of(context.sockets.connections))
    if traffic.live and context.handshakes_per_s is not None:
        opening = tcp.syn & traffic.of_sources(rows)
        wanted = _AGREE * float(traffic.weight[opening].sum()) / max(traffic.seconds, 1e-6)
        proven = proven | (tcp.completed & (context.handshakes_per_s >= wanted))
    weight = traffic.weight[rows]
    if weight @ (proven[rows] & tcp.tcp[rows]) > _MOST * weight.sum():
        return True
    share = _tracked_share(context, rows[tcp.tcp[rows]])
    return bool(share * (weight @ tcp.tcp[rows]) > _MOST * weight.sum())


def _tracked_share(context: AnalysisContext, rows: Rows) -> float:
    """Return the share of packets of connections that both ends have answered; 0 if too few tell."""
    if not context.traffic.live or context.tracked is None:
        return 0.0
    flows, weight = flows_of_packets(context.traffic.packets)[rows], context.traffic.weight[rows]
    told = among(flows, context.tracked.asked)
    if len(np.unique(flows[told])) < _TELL and weight[told].sum() <= _MOST * weight.sum():
        return 0.0
    assured = among(flows, context.tracked.assured)
    return float(weight[assured].sum() / weight[told].sum()) if told.any() else 0.0


def bystanders(
    context: AnalysisContext,
    rule: Rule,
    parts: tuple[F64, F64],
    normal: Normal,
    found: Rehearsal,
    *,
    returns: bool,
) -> str:
    """Say who may be cut by a rule against an attack; "" if nobody is.

    `parts` are the dropped shares of each packet of what is normal, and of the window. With a return path
    (`returns`) the predicted harm is all that there is, and what this host asks.
    """
    asked = next((loss.words for loss in found.losses if loss.who is Who.ASKED), "")
    if asked or returns or drops_nothing(rule) or of(rule.kind).answers:
        return asked
    lost = _cut(normal.packets, parts[0], normal.pps) if not normal.guess else np.zeros(0, np.uint64)
    if rule.limit is not None:  # forged packets use up what it leaves to those whose addresses they have
        drops = parts[1] * among(context.traffic.source_key, users(rule.match, context, normal))
        lost = np.concatenate((lost, _cut(context.traffic.packets, drops, context.traffic.weight)))
    apart = _of_another_family(
        lost, normal, context.traffic.packets.family, parts[1] * context.traffic.weight
    )
    for what, who in (("could be forged", lost[~apart]), ("would be cut", lost[apart])):
        if named := tuple(_named(context, who, normal)):
            return f"{what}: {' and '.join(named)}"
    clients = rule.predicted_clients
    if clients is not None and clients.hit + clients.others_hit:
        return clients.words
    return _unseen(rule, normal)


def _unseen(rule: Rule, normal: Normal) -> str:
    """Say who that nobody knows yet may be cut."""
    if rule.match.sources and rule.limit is None:
        return "could be forged: none of these sources has completed a handshake in the attack"
    if rule.limit is not None and not rule.match.sources:
        return "limits everybody, and who sends little in calm may send more"
    if _is_by_distance(rule.match, normal) and len(np.unique(normal.clients.source)) < _TELLING:
        return "other clients at this distance would be cut: few are known whose TTL could tell"
    return ""


def users(match: Match, context: AnalysisContext, normal: Normal) -> U64:
    """Return the hashes of the sources that usually send what a rule looks at, or answer this host so."""
    clients, asked = normal.clients, (*normal.asked, *context.known.asked)
    uses = np.full(len(clients), match.sport is None)
    for wanted, given in ((match.protocol, clients.door >> 16), (match.dport, clients.door & 0xFFFF)):
        uses &= wanted is None or given == wanted
    peers = [one.peer for one in asked if match.dport is None and match.protocol in (None, one.protocol)]
    sources = mix(normal.sources.src_hi, normal.sources.src_lo)[match_rows(match, normal.packets)]
    return np.concatenate((clients.source[uses], sources, _hashes(peers)))


def others(prefixes: Sequence[Prefix], users: U64) -> tuple[Prefix, ...]:
    """Return the prefixes that are none of these users' addresses."""
    is_user = among(_hashes(prefixes), users)
    return tuple(one for one, known in zip(prefixes, is_user.tolist(), strict=True) if not known)


def _hashes(prefixes: Sequence[Prefix]) -> U64:
    low = (1 << 64) - 1
    columns = np.array([(one.value >> 64, one.value & low) for one in prefixes], np.uint64).reshape(-1, 2)
    return mix(columns[:, 0], columns[:, 1])


def _cut(packets: PacketBatch, part: F64, weight: F64) -> U64:
    """Return the hashes of the sources that lose a good part of what they send to one port."""
    if not part.any():
        return np.zeros(0, np.uint64)
    source = mix(packets.src_hi, packets.src_lo)
    door = packets.protocol.astype(np.uint64) << np.uint64(16) | packets.dport.astype(np.uint64)
    _, first, at = np.unique(mix(source, door), return_index=True, return_inverse=True)
    lost, whole = np.bincount(at, part * weight), np.bincount(at, weight)
    return np.unique(source[first[lost > _LOST * whole]])


def _named(context: AnalysisContext, lost: U64, normal: Normal) -> Iterator[str]:
    """Say who these sources are and since when they are known, the longest known first."""
    clients, sources = normal.clients, normal.sources
    known = np.flatnonzero(among(clients.source, lost))
    known = known[np.argsort(clients.first[known], kind="stable")]
    _, once = np.unique(clients.source[known], return_index=True)
    known = known[np.sort(once)]
    others = np.flatnonzero(among(mix(sources.src_hi, sources.src_lo), lost[~among(lost, clients.source)]))
    now = context.traffic.started
    for row in known[:_NAMED].tolist():
        since = float(clients.first[row])
        form = "%H:%MZ" if now - since < _DAY else "%Y-%m-%d"
        who = format_address(int(clients.family[row]), int(clients.hi[row]), int(clients.lo[row]))
        yield f"{who} is a client of yours since {utc(since, form)}"
    if len(known) > _NAMED:
        yield plural(len(known) - _NAMED, "other client")
    elif len(known) == 0 and len(others):
        row = int(others[0])
        who = format_address(int(sources.family[row]), int(sources.src_hi[row]), int(sources.src_lo[row]))
        yield f"{who} sends such packets in calm"


def _of_another_family(who: U64, normal: Normal, family: U8, dropped: F64) -> Mask:
    """Tell which sources are of a family that an attack has hardly any address of: it forges none."""
    if not len(who):  # most rules cut nobody
        return np.zeros(0, np.bool_)
    of_family = np.bincount(family, dropped, 7)
    forged = np.flatnonzero(of_family > _LOST * of_family.sum())
    clients, sources = normal.clients, normal.sources
    others = ~np.isin(clients.family, forged), ~np.isin(sources.family, forged)
    keys = clients.source[others[0]], mix(sources.src_hi, sources.src_lo)[others[1]]
    return among(who, np.concatenate(keys)) if len(forged) else np.zeros(len(who), np.bool_)


def _is_by_distance(match: Match, normal: Normal) -> bool:
    """Test whether a rule tells packets from clients only by their TTL: without it, it hits some of them."""
    ranges = [name for name in RANGES if getattr(match, name) is not None]
    if "ttl" not in ranges or match.sources or match.payload or match.sport or match.fragment:
        return False
    return ranges == ["ttl"] or bool(match_rows(replace(match, ttl=None), normal.packets).any())


# Addresses of IPv4 that send anything within a year: Richter et al., Beyond Counting, IMC 2016. For want of a
# count of IPv6, one of its networks of 64 bits counts as one of them.
_IN_USE = 1.2e9
_TRUST = 1_000  # known clients that say as much about where the next one is as the map of all addresses
_MOSTLY, _ALL = 0.5, 0.95  # of what clients of a service open it with
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
    held = [one.held.connections for one in findings if one.held is not None]
    family = np.concatenate([packets.family[rows], *(one.family for one in held)])
    hi = np.concatenate([packets.src_hi[rows], *(one.hi for one in held)])
    lo = np.concatenate([packets.src_lo[rows], *(one.lo for one in held)])
    covers = in_prefixes(family, hi, lo, sources)
    hosts = hi[covers], np.where(family[covers] == 4, lo[covers], 0)
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
        return (name, "everybody" if lost >= _ALL else "most clients") if lost > _MOSTLY else ("", "")
    served = len(normal.doors) > 0 and len(normal.doors.at(protocol << 16 | port)) > 1
    known = among(normal.clients.door, np.array([protocol << 16 | port], np.uint32)).any()
    barred = match.dport is not None and bars_newcomers(match, rule.limit) and (served or bool(known))
    return (name, "everybody") if barred else ("", "")
