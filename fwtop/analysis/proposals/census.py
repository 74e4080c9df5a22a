"""Which known clients a rule hits: by their packets in what is normal or, without one, by like clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.clients import Clients, client_key
from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.proposals.matching import in_prefixes, match_rows
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import TCP, Rows, mix
from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import ClientHarm
from fwtop.model.rule import RANGES, Match, Rule
from fwtop.model.traffic.packets import F64, U64, Mask, PacketBatch
from fwtop.rules.kinds import drops_nothing
from fwtop.stats.services import Doors

_ANY, _HALF = 0.005, 0.5  # of a client's packets
_ENOUGH = 4_096  # packets of an attack, to see which services it reaches
_DAY = 86_400.0  # for which a client counts fully


class Aim(Struct, frozen=True):
    """What a rule is to protect: the attacked service, and whether the attack completes handshakes."""

    protocol: int = 0
    port: int = 0  # 0: all services
    completes: bool = False
    services: tuple[int, ...] = ()  # numbers of those with this port that it reaches; (): nothing is known

    @staticmethod
    def at(finding: Finding | None, context: AnalysisContext) -> Aim:
        """Return what an attack aims at."""
        if finding is None:
            return Aim()
        if finding.held is not None:
            protocol, port, completes = TCP, finding.held.port, True
        else:
            match = finding.match
            protocol, port, completes = match.protocol or TCP, match.dport or 0, finding.requests
        if not port:
            return Aim(completes=completes)
        doors, rows = context.baseline.doors, finding.rows[:: len(finding.rows) // _ENOUGH + 1]
        there = doors.at(protocol << 16 | port)
        reached = there[np.isin(there, doors.numbers(context.traffic.packets, rows))]
        numbers = np.unique(reached if len(reached) else there)
        return Aim(protocol, port, completes, tuple(numbers.tolist()))


def clients_of(context: AnalysisContext) -> Clients:
    """Return the long known, and who is new unless an attack explains its packets."""
    found, traffic = context.baseline.clients, context.traffic
    if len(found) and not context.unclaimed.all():
        claimed = among(found.source, traffic.source_key[~context.unclaimed])
        found = found.select(found.long_known | ~claimed)
    return found


class Census(Struct, frozen=True):
    """The known clients of a moment, joined with their packets in what is normal."""

    clients: Clients
    long: Mask
    weight: F64  # of each, by how long it is known
    number: Rows  # of each packet the client; their count where it is nobody's
    pps: F64  # of each packet
    own: F64  # of each client
    like: Rows  # of each client the one whose packets tell of it; their count where there is none
    apart: Rows  # the clients where there is none
    unseen: Clients  # these

    @staticmethod
    def of(found: Clients, packets: PacketBatch, pps: F64, doors: Doors) -> Census:
        """Join clients with packets."""
        count = len(found)
        keys = client_key(mix(packets.src_hi, packets.src_lo), doors.numbers(packets))
        at = np.searchsorted(found.key, keys)
        number = np.where(np.append(found.key, np.uint64(0))[at] == keys, at, count)
        own = np.asarray(np.bincount(number, pps, count + 1)[:count], np.float64)
        like, weight = _like(found, own > 0), np.minimum(found.seconds, _DAY) + 1.0
        apart = np.flatnonzero(like == count)
        return Census(found, found.long_known, weight, number, pps, own, like, apart, found.select(apart))

    def lost(self, rule: Rule, part: F64, packets: PacketBatch) -> F64:
        """Return the share (0 to 1) that each client loses, of the lost `part` of each packet."""
        own = self._each(part)
        rules = [one for one in rule.parts or (rule,) if not drops_nothing(one)]
        unseen = [self._lost_like(one, own, packets) for one in rules]
        return np.where(self.own > 0, own, np.max(unseen, axis=0) if unseen else own)

    def _lost_like(self, rule: Rule, own: F64, packets: PacketBatch) -> F64:
        """Return what clients lose of which no packet was seen, as those like them do."""
        match, clients = rule.match, self.clients
        bare = own
        if match.sources and rule.limit is None:
            bare = self._each(match_rows(replace(match, sources=()), packets).astype(np.float64))
        like = np.append(bare, 0.0)[self.like]
        like[self.apart] = _by_service(match, self.unseen)
        if match.sources:
            like *= in_prefixes(clients.family, clients.hi, clients.lo, match.sources)
        return like

    def harm(self, lost: F64, aim: Aim, allowed: Sequence[Prefix] = ()) -> ClientHarm:
        """Count who loses how much."""
        clients, long = self.clients, self.long
        if allowed:
            lost = lost * ~in_prefixes(clients.family, clients.hi, clients.lo, allowed)
        mine = self._of(aim)
        known = mine & (long | (not aim.completes))
        hit = lost > _ANY
        weight = self.weight * known
        whole = float(weight.sum())
        return ClientHarm(
            known=int(known.sum()),
            hit=int((hit & known).sum()),
            hit_half=int((known & (lost > _HALF)).sum()),
            unsure=int((hit & mine & ~known).sum()),
            others=int((~mine).sum()),
            others_hit=int((hit & ~mine).sum()),
            share=min(1.0, float(weight @ lost) / whole) if whole else 0.0,
            protocol=aim.protocol,
            port=aim.port,
        )

    def harm_of_sources(self, sources: U64, aim: Aim) -> ClientHarm:
        """Count the clients of the attacked service among sources that lose it."""
        lost = among(self.clients.source, sources) & self._of(aim)
        return self.harm(lost.astype(np.float64), aim)

    def _of(self, aim: Aim) -> Mask:
        """Mark the clients of what is attacked."""
        if not aim.port:
            return np.ones(len(self.clients), np.bool_)
        return np.isin(self.clients.service, aim.services or (aim.protocol << 16 | aim.port,))

    def _each(self, part: F64) -> F64:
        count = len(self.clients)
        sums = np.bincount(self.number, part * self.pps, count + 1)[:count]
        return np.divide(sums, self.own, out=np.zeros(count), where=self.own > 0)


def _like(clients: Clients, seen: Mask) -> Rows:
    """Choose for each client one of the same service whose packets were seen, another for each."""
    order = np.flatnonzero(seen)[np.argsort(clients.service[seen], kind="stable")]
    known = clients.service[order]
    first, last = np.searchsorted(known, clients.service), np.searchsorted(known, clients.service, "right")
    place = first + np.arange(len(clients)) % np.maximum(last - first, 1)
    return np.where(last > first, np.append(order, 0)[np.minimum(place, len(order))], len(clients))


def _by_service(match: Match, clients: Clients) -> Mask:
    """Mark clients of which no packet is known that a rule hits by family and service alone."""
    if match.payload or match.sport is not None or any(getattr(match, name) for name in RANGES):
        return np.zeros(len(clients), np.bool_)
    hit = np.ones(len(clients), np.bool_)
    for wanted, given in (
        (match.family, clients.family), (match.protocol, clients.door >> 16),
        (match.dport, clients.door & 0xFFFF),
    ):  # fmt: skip
        hit &= wanted is None or given == wanted
    return hit
