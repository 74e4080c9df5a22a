"""What a rule would stop and harm, replayed on samples and on normal traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fwtop.advise.limits import replayed, sustained
from fwtop.advise.matching import limit_groups, match_rows
from fwtop.advise.scene import Finding, Scene
from fwtop.advise.tcpview import ACK, SYN
from fwtop.advise.texts import Texts
from fwtop.advise.traffic import TCP, Rows, Traffic, mix
from fwtop.model.address import format_address
from fwtop.model.packets import F64, Mask, PacketBatch
from fwtop.model.percent import percent
from fwtop.model.rule import RANGES, Kind, Match, RateLimit, Rule

_EXAMPLES = 4
_LOADED = 2_048
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 47: "gre", 50: "esp", 58: "icmpv6"}


@dataclass(frozen=True)
class Normal:
    """Packets that are taken as normal, with the packets a second that each stands for."""

    packets: PacketBatch
    pps: F64
    sentence: str
    guess: bool  # no baseline from before the attack
    seconds: float = 1.0  # of normal traffic that the packets are taken from

    @cached_property
    def loaded(self) -> Rows:
        """Some that have a payload, evenly taken: enough to know shares to a twentieth of a percent."""
        rows = np.flatnonzero(self.packets.payload_length > 0)
        return rows[np.linspace(0, len(rows) - 1, min(_LOADED, len(rows))).astype(np.intp)]

    @cached_property
    def texts(self) -> Texts:
        """Their payloads."""
        return Texts.of(self.packets, self.loaded)

    @property
    def total_pps(self) -> float:
        """All of it."""
        return float(self.pps.sum())


@dataclass(frozen=True, slots=True)
class Harm:
    """What a rule does to normal traffic."""

    share: float
    pps: float
    examples: tuple[str, ...]


def stopped(match: Match, limit: RateLimit | None, traffic: Traffic) -> F64:
    """Return for each arrived row the part (0 to 1) that the rule would drop."""
    hit = match_rows(match, traffic.packets)
    part = hit.astype(np.float64)
    if limit is not None:
        rows = np.flatnonzero(hit)
        part[rows] = sustained(limit, traffic.packets, rows, traffic.weight[rows], traffic.seconds)
    return part


def stopped_by(rule: Rule, scene: Scene, traffic: Traffic) -> F64:
    """Return what `stopped` does, for any kind of rule; of SYN proxies the handshakes that nobody finishes.

    `traffic` is the scene's or a part of it; a proxy is measured on the whole.
    """
    if rule.kind is not Kind.SYNPROXY:
        return stopped(rule.match, rule.limit, traffic)
    opening = replace(rule.match, tcp_flags=(SYN | ACK, SYN))
    return np.asarray(match_rows(opening, scene.traffic.packets) & ~scene.tcp.real, np.float64)


def harm_by(rule: Rule, normal: Normal, traffic: Traffic) -> Harm:
    """Return what `harm` does, for any kind of rule: a proxy's real clients get through."""
    if rule.kind is Kind.SYNPROXY:
        return Harm(0.0, 0.0, ())
    return harm(rule.match, rule.limit, normal, traffic)


def share_stopped(part: F64, match: Match, traffic: Traffic, finding: Finding, rows: Rows) -> float:
    """Return the part of an attack that is stopped: of its packets, or of its requests.

    `rows` are the finding's in this traffic. A flood of requests over real connections is stopped by dropping
    these; its other packets still come.
    """
    if finding.requests and match.payload:
        rows = rows[traffic.packets.payload_length[rows] > 0]
    return share_of(part, traffic, rows)


def share_of(part: F64, traffic: Traffic, rows: Rows) -> float:
    """Return the part of an attack's packets that is dropped."""
    total = float(traffic.weight[rows].sum())
    return float((part[rows] * traffic.weight[rows]).sum()) / total if total else 0.0


def harm(match: Match, limit: RateLimit | None, normal: Normal, traffic: Traffic) -> Harm:
    """Count what the rule would hit of normal traffic, with the flows that suffer most.

    A limit is shared with what attacks from the same prefixes at present.
    """
    packets = normal.packets
    if normal.guess and _bars_every_connection(match, limit):
        # Not counted but certain, as no opening connection is among what is left of normal traffic
        return Harm(1.0, normal.total_pps, (f"every new connection{_to_port(match)}",))
    if len(packets) == 0:
        return Harm(0.0, 0.0, ())
    hit = match_rows(match, packets)
    part = hit.astype(np.float64)
    if limit is not None:
        rows = np.flatnonzero(hit)
        alone = replayed(limit, packets, rows, normal.pps[rows] * normal.seconds, normal.seconds)
        part[rows] = np.maximum(alone, _crowded_out(match, limit, packets, rows, traffic))
    else:
        part = np.maximum(part, _lost_connections(match, hit, packets, normal.pps))
    pps = float((part * normal.pps).sum())
    total = normal.total_pps
    return Harm(pps / total if total else 0.0, pps, _examples(part, normal))


def _crowded_out(match: Match, limit: RateLimit, packets: PacketBatch, rows: Rows, traffic: Traffic) -> F64:
    """Return the part of normal rows that is lost because attackers of the same prefix use its rate up."""
    now = np.flatnonzero(match_rows(match, traffic.packets))
    if len(now) == 0 or len(rows) == 0:
        return np.zeros(len(rows))
    lost = sustained(limit, traffic.packets, now, traffic.weight[now], traffic.seconds)
    keys, first = np.unique(limit_groups(limit, traffic.packets, now), return_index=True)
    mine = limit_groups(limit, packets, rows)
    at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
    return np.asarray(np.where(keys[at] == mine, lost[first[at]], 0.0), np.float64)


def _lost_connections(match: Match, hit: Mask, packets: PacketBatch, pps: F64) -> F64:
    """A dropped SYN, or a dropped request, costs its whole connection: spread the loss over its packets.

    Among the connections within the rule's addresses and ports, as many are lost as SYNs, or packets with
    data, are hit: what is sent again is dropped again. A lost bare ACK or FIN costs nothing. The packets that
    are hit are of these connections, so the other packets bear the rest of the loss only.
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


def _bars_every_connection(match: Match, limit: RateLimit | None) -> bool:
    """Tell a rule that drops SYNs, or all of TCP, by nothing but port and flags: no real client passes it."""
    ranges = (getattr(match, name) for name in RANGES)
    narrow = (match.sources, match.payload, match.sport, match.fragment, *ranges)
    opens = match.protocol == TCP if match.tcp_flags is None else _matches_syn(match.tcp_flags)
    return limit is None and opens and not any(narrow)


def _to_port(match: Match) -> str:
    return f" to TCP port {match.dport}" if match.dport is not None else ""


def _matches_syn(flags: tuple[int, int]) -> bool:
    mask, value = flags
    return (SYN & mask) == value


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
