"""Who a source is: an attacker, a client, or not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.proposals.matching import in_prefixes
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.tcp_view import view_tcp
from fwtop.analysis.window.traffic import TCP, Traffic, host_key, mix
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import WHO, AllowedPeer
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import (
    F64,
    FLAG_OUTBOUND,
    U8,
    U64,
    Mask,
    NoOrigin,
    OriginColumns,
    OriginLookup,
    PacketBatch,
    Window,
)
from fwtop.model.traffic.snapshot import Source, Sources

ATTACK, CLIENT = "attack", "client"
_MOST = 0.5  # of a source's packets decide who it is
_NEARLY_ALL = 0.95  # of the packets alike are an attack's: so are those that come after
_SAMPLE = 8_192  # packets in which like ones are counted
_LEAST = 20  # of them


def like_keys(packets: PacketBatch) -> U64:
    """Return equal numbers for packets of one protocol, destination port, flags, length and kind."""
    first = packets.protocol.astype(np.uint64) << np.uint64(48)
    first |= packets.dport.astype(np.uint64) << np.uint64(32)
    first |= packets.ip_length.astype(np.uint64) << np.uint64(16)
    first |= packets.tcp_flags.astype(np.uint64) << np.uint64(8) | packets.icmp_type
    second = packets.family.astype(np.uint64) << np.uint64(16) | packets.ethertype
    return mix(first, second << np.uint64(8) | packets.fragment)


def known_before(context: AnalysisContext) -> U64:
    """Return the hashes of the clients that were there before the attack, in no order."""
    if not context.baseline.ready:
        return np.zeros(0, np.uint64)
    before, clients = context.baseline.rows, context.baseline.clients
    before = before.select(before.protocol != TCP)  # a lone SYN makes nobody a client
    return np.concatenate((mix(before.src_hi, before.src_lo), clients.source[clients.long_known]))


class Standing(Struct, frozen=True, dict=True):
    """The sources of a judged window: how much of each do attacks explain, and which are clients?"""

    family: U8
    hi: U64
    lo: U64
    weight: F64
    claimed: F64  # part of `weight`
    client: Mask  # has real connections, or was there before the attack
    attack_keys: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # like_keys of attacks' packets
    attacked: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # hashes of whom rules cut off
    lookup: OriginLookup = field(default_factory=NoOrigin)
    _known: dict[str, str] = field(default_factory=dict)  # what was asked before

    @staticmethod
    def unknown() -> Standing:
        """Return the standing before anything was judged."""
        addresses, numbers = np.zeros(0, np.uint64), np.zeros(0)
        none = np.zeros(0, np.uint8)
        return Standing(none, addresses, addresses, numbers, numbers, none.astype(np.bool_))

    @staticmethod
    def of(context: AnalysisContext, lookup: OriginLookup, cut_off: Sequence[U64] = ()) -> Standing:
        """Sum up a context whose attacks have been found.

        Who is among the senders of attacks that rules have `cut_off`, and was no client before, has no name:
        what is left of its connections would make it a client.
        """
        traffic, packets = context.traffic, context.traffic.packets
        numbers, rows = traffic.source_id, np.arange(len(traffic))
        count = int(numbers.max()) + 1 if len(rows) else 0
        first = np.zeros(count, np.intp)
        first[numbers[::-1]] = rows[::-1]
        real = np.bincount(numbers, context.tcp.real & context.unclaimed, count) > 0
        hi, lo = packets.src_hi[first], packets.src_lo[first]
        before = among(mix(hi, lo), known_before(context)) if context.findings or cut_off else real & False
        hosts = host_key(packets.family[first], hi, lo)
        senders = np.concatenate(cut_off) if cut_off else hosts[:0]
        attacked = np.asarray(hosts[~before & among(hosts, senders)])
        real = (real | before) & ~among(hosts, attacked)
        weight = np.asarray(np.bincount(numbers, traffic.weight, count), np.float64)
        claimed = np.asarray(np.bincount(numbers, traffic.weight * ~context.unclaimed, count), np.float64)
        real &= claimed < _MOST * weight
        keys = _attack_keys(context)
        return Standing(packets.family[first], hi, lo, weight, claimed, real, keys, attacked, lookup)

    def mark(self, sources: Sources) -> Sources:
        """Return the tables with `who` set where it wasn't known and packets tell."""
        self._know(entry for entry in sources.address if entry.prefix is not None and entry.prefix.is_address)
        tables = ("address", "prefix", "asn", "country")
        return replace(sources, **{name: tuple(map(self._marked, getattr(sources, name))) for name in tables})

    def _know(self, entries: Iterable[Source]) -> None:
        """Find out who addresses are, all together: one by one would be a tenth of a calm tick's time."""
        new = {
            entry.key: entry.prefix
            for entry in entries
            if not entry.who and entry.prefix is not None and entry.key not in self._known
        }
        if not new or not len(self.hi):
            return
        keys, order = self._by_key
        hi, lo = (np.array([getattr(one, name) for one in new.values()], np.uint64) for name in ("hi", "lo"))
        wanted = mix(hi, lo)
        first = np.searchsorted(keys, wanted)
        alike = np.searchsorted(keys, wanted, "right") - first  # if several, `_marked` tells them apart
        rows = order[np.minimum(first, len(keys) - 1)]
        met = (alike == 1) & (self.family[rows] == [one.family for one in new.values()])
        attacks = met & (self.weight[rows] > 0) & (self.claimed[rows] >= _MOST * self.weight[rows])
        names = np.where(attacks, ATTACK, np.where(met & self.client[rows], CLIENT, ""))
        told = zip(new, names.tolist(), (alike <= 1).tolist(), strict=True)
        self._known.update((key, name) for key, name, is_told in told if is_told)

    def clients(self, count: int) -> tuple[Prefix, ...]:
        """Return the clients that send most while an attack is under way, heaviest first."""
        if not self.claimed.any():
            return ()
        rows = np.flatnonzero(self.client)
        rows = rows[np.argsort(-self.weight[rows], kind="stable")][:count]
        columns = zip(self.family[rows].tolist(), self.hi[rows].tolist(), self.lo[rows].tolist(), strict=True)
        return tuple(Prefix.of_columns(family, hi, lo) for family, hi, lo in columns)

    def _marked(self, entry: Source) -> Source:
        if entry.who:
            return entry
        who = self._known.get(entry.key)
        if who is None:
            who = self._known[entry.key] = self._who(self._rows(entry))
        return replace(entry, who=who) if who else entry

    def _rows(self, entry: Source) -> Mask:
        if entry.prefix is not None:
            return in_prefixes(self.family, self.hi, self.lo, [entry.prefix])
        if entry.asn is not None:
            return np.asarray(self._origin.asn == entry.asn)
        letters = entry.key.encode()
        return np.asarray(self._origin.country == int.from_bytes(letters[:2], "big"))

    @cached_property
    def _by_key(self) -> tuple[U64, NDArray[np.intp]]:
        """Hashes of the sources in ascending order, and their rows."""
        keys = mix(self.hi, self.lo)
        order = np.argsort(keys)
        return keys[order], order

    @cached_property
    def _origin(self) -> OriginColumns:
        return self.lookup.columns(self.family, self.hi, self.lo)

    def _who(self, rows: Mask) -> str:
        """Name what most packets of some sources are."""
        whole = float(self.weight[rows].sum())
        if not whole:
            return ""
        if float(self.claimed[rows].sum()) >= _MOST * whole:
            return ATTACK
        return CLIENT if float(self.weight[rows & self.client].sum()) >= _MOST * whole else ""


def _attack_keys(context: AnalysisContext) -> U64:
    """Return what packets are like that practically all belong to attacks; forged sources change too fast."""
    step = len(context.traffic) // _SAMPLE + 1
    rows = slice(None, None, step)
    keys, number = np.unique(like_keys(context.traffic.packets.select(rows)), return_inverse=True)
    count = np.bincount(number, minlength=len(keys))
    claimed = np.bincount(number, ~context.unclaimed[rows], len(keys))
    return keys[(count >= _LEAST) & (claimed >= _NEARLY_ALL * count)]


def who_of(packets: PacketBatch, peers: Iterable[AllowedPeer], standing: Standing) -> NDArray[np.str_]:
    """Return who each source is: names of allow-listed peers first, then attack or client; "" is unknown.

    What was judged is a moment old. So packets like those of an attack are its packets, too, and sources of
    real connections among these packets are clients.
    """
    who = np.full(len(packets), "", f"<U{max(len(name) for name in (*WHO.values(), ATTACK, CLIENT))}")
    keys = mix(packets.src_hi, packets.src_lo)
    judged = mix(standing.hi, standing.lo)
    who[np.isin(like_keys(packets), standing.attack_keys)] = ATTACK
    real = _real(packets)
    real[real] = ~among(
        host_key(packets.family[real], packets.src_hi[real], packets.src_lo[real]), standing.attacked
    )
    who[np.isin(keys, keys[real])] = CLIENT
    who[np.isin(keys, judged[standing.client])] = CLIENT
    attacking = (standing.claimed > 0) & (standing.claimed >= _MOST * standing.weight)
    who[np.isin(keys, judged[attacking])] = ATTACK
    by_name: dict[str, list[Prefix]] = {}
    for peer in peers:
        by_name.setdefault(WHO[peer.role], []).append(peer.prefix)
    for name in reversed(WHO.values()):  # the first ones win
        if name in by_name:
            who[in_prefixes(packets.family, packets.src_hi, packets.src_lo, by_name[name])] = name
    return who


def _real(packets: PacketBatch) -> Mask:
    """Mark the TCP packets of real connections."""
    if not len(packets):
        return np.zeros(0, np.bool_)
    empty, every = PacketBatch.empty(), replace(packets, flags=packets.flags & ~np.uint8(FLAG_OUTBOUND))
    window = Window(0.0, 1.0, every, empty, empty, Counters(1.0, len(packets), 0))
    return view_tcp(Traffic.of(window, AdviseConfig())).real
