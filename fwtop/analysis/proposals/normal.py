"""Normal traffic, on which harm is measured: the baseline or, without one, an estimate marked as such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.clients import Clients
from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.memory import learning_words
from fwtop.analysis.proposals.census import Census, clients_of
from fwtop.analysis.proposals.matching import Texts, payload_rows
from fwtop.analysis.proposals.prefixes import Addresses
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, UDP, Rows, from_hosts
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import DNS_PORT, NTP_PORT
from fwtop.model.rule import PayloadMatch, Rule
from fwtop.model.traffic.packets import F64, Mask, PacketBatch
from fwtop.rehearsal.host import Asked, Host, KnownPeers
from fwtop.rehearsal.rehearse import Rehearsal, rehearse
from fwtop.render.numbers import percent, plural
from fwtop.stats.services import Doors

_KNOWN = 30  # normal packets: fewer are no basis
_MINORITY = 0.03  # of an attack's packets: a larger remainder is another variant of the attack
_LOADED = 2_048  # packets with a payload that are searched


class Normal(Struct, frozen=True, dict=True):
    """Packets taken as normal, with the packets per second that each represents."""

    packets: PacketBatch
    pps: F64
    sentence: str
    guess: bool  # no baseline from before the attack
    seconds: float = 1.0  # length of the sampled normal traffic
    clients: Clients = field(default_factory=Clients.of)  # that are known
    doors: Doors = field(default_factory=Doors.of)  # to the services

    @cached_property
    def loaded(self) -> Rows:
        """Rows with a payload, at most _LOADED, evenly spaced."""
        rows = np.flatnonzero(self.packets.payload_length > 0)
        return rows[np.linspace(0, len(rows) - 1, min(_LOADED, len(rows))).astype(np.intp)]

    @cached_property
    def texts(self) -> Texts:
        """Their payloads."""
        return Texts.of(self.packets, self.loaded)

    @cached_property
    def sources(self) -> Addresses:
        """Their sources."""
        return Addresses.of(self.packets)

    @cached_property
    def census(self) -> Census:
        """Their clients."""
        return Census.of(self.clients, self.packets, self.pps, self.doors)

    @cached_property
    def asked(self) -> tuple[Asked, ...]:
        """Whom this host asks, by the answers to it; nobody if these packets are an estimate.

        Those are SYN+ACKs, and datagrams from the ports of names and time: of others nobody knows who began.
        """
        packets = self.packets
        opened = (packets.protocol == TCP) & ((packets.tcp_flags & (SYN | ACK)) == (SYN | ACK))
        told = (packets.protocol == UDP) & np.isin(packets.sport, (DNS_PORT, NTP_PORT))
        rows = np.flatnonzero((opened | told) & (packets.family > 0) & (not self.guess))
        columns = (packets.family, packets.src_hi, packets.src_lo, packets.protocol, packets.sport)
        found = set(zip(*(column[rows].tolist() for column in columns), strict=True))
        return tuple(
            Asked(Prefix.of_columns(family, hi, lo), protocol, port)
            for family, hi, lo, protocol, port in sorted(found)
        )

    def rehearsed(self, rule: Rule, known: KnownPeers) -> Rehearsal:
        """Rehearse a rule with what a console knows; the guard does it again with what root knows."""
        return rehearse(rule, Host(known, asked=lambda: (*self.asked, *known.asked)))

    @property
    def total_pps(self) -> float:
        """All of it."""
        return float(self.pps.sum())


def normal_traffic(context: AnalysisContext) -> Normal:
    """Return the baseline, else an estimate from the packets that no attack explains."""
    baseline, traffic, clients = context.baseline, context.traffic, clients_of(context)
    rows, total = baseline.rows, sum(baseline.mean.values())
    weights = float(rows.weight.sum())
    if baseline.ready and weights * total > 0:  # shares of nothing would be no numbers
        pps = rows.weight * (total / weights)
        sentence = (
            f"baseline: {len(rows):,} packets sampled over {baseline.seconds:,.0f} quiet seconds "
            f"({total:,.0f} packets/s)"
        )
        return Normal(rows, pps, sentence, False, baseline.seconds, clients, baseline.doors)
    rows_left = traffic.rows(_unexplained(context) if context.findings else context.unclaimed)
    real = float(context.tcp.real[rows_left].mean()) if len(rows_left) else 0.0
    if len(rows_left) == 0:
        sentence = "no client-like packets: client impact can't be estimated"
    elif context.findings:
        sentence = (
            "no baseline yet: client impact is estimated from "
            f"{plural(len(rows_left), 'client-like packet')}, "
            f"{percent(real)} of them of established connections"
        )
    else:
        sentence = learning_words(baseline)
    packets = traffic.packets.select(rows_left)
    pps = traffic.weight[rows_left] / traffic.seconds
    return Normal(packets, pps, sentence, True, traffic.seconds, clients, baseline.doors)


def _unexplained(context: AnalysisContext) -> Mask:
    """Mark the packets that no attack explains, and that nobody sends who attacked a moment ago."""
    traffic, packets = context.traffic, context.traffic.packets
    theirs = from_hosts(packets.family, packets.src_hi, packets.src_lo, context.attackers)
    theirs &= ~traffic.of_sources(context.mixed_sources)
    return np.asarray((context.unclaimed & ~context.backscatter & ~theirs) | context.mixed_sources)


def with_unexplained(
    context: AnalysisContext, normal: Normal, found: Mapping[str, Sequence[PayloadMatch]]
) -> Normal:
    """Add packets to an estimate that resemble an attack but lack its signature: clients of the same port.

    Returns `normal` itself if there is a baseline, or no such packet, or no other normal packet: then
    these few are more likely variants of the attack.
    """
    if not normal.guess or len(normal.packets) < _KNOWN:
        return normal
    none = np.zeros(0, np.intp)
    rows = [none, *(_minority(context, one, found.get(one.key, ())) for one in context.findings)]
    more = np.unique(np.concatenate(rows))
    more = more[~context.mixed_sources[more]]  # already included
    if len(more) == 0:
        return normal
    traffic = context.traffic
    packets = PacketBatch.concat([normal.packets, traffic.packets.select(more)])
    pps = np.concatenate([normal.pps, traffic.weight[more] / traffic.seconds])
    beside = f"{plural(len(more), 'packet')} to the same ports without the signature of the attack"
    return replace(normal, packets=packets, pps=pps, sentence=f"{normal.sentence}, and from {beside}")


def _minority(context: AnalysisContext, finding: Finding, found: Sequence[PayloadMatch]) -> Rows:
    """Return the rows of the finding with a payload but no signature, if they are few."""
    none = np.zeros(0, np.intp)
    if finding.state or not found:
        return none
    packets = context.traffic.packets
    loaded = finding.rows[packets.payload_length[finding.rows] > 0]
    explained = np.zeros(len(loaded), np.bool_)
    for one in found:
        explained |= payload_rows(one, packets, loaded)
    return none if (~explained).mean() > _MINORITY else loaded[~explained]
