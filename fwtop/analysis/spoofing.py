"""Spoofing estimate: independent signs, each with a sentence, summed as log-odds.

Sources: RFC 2827 and 6890 (addresses that can't arrive), RFC 5635, "Inferring Internet Denial-of-Service
Activity" (Moore 2001), "Hop-count filtering" (Jin 2003), CAIDA Spoofer.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.analysis.window.counting import distinct_values, marked, occurrences, part_marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, Traffic, from_addresses
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import F64, U16, U64, Mask, PacketBatch
from fwtop.render.numbers import percent, plural

_FIRST = np.array([32, 64, 128, 255])  # initial TTLs of systems
_SLACK = 2  # hops: routes change
_REPEATED, _REPEATING = 3, 20  # packets of a source, and such sources, that tell whether it keeps its TTL
_LOOPBACK = np.uint64(127)
_NETWORKS = 8  # known networks: fewer say nothing

_Hops = NDArray[np.intp]
Sign = tuple[float, str]  # one observation: its contribution to the log-odds, and a sentence


class Distances(Struct, frozen=True):
    """The least and greatest hop distance of each known /24 and /48, sorted by network."""

    networks: U64
    least: _Hops
    most: _Hops

    @staticmethod
    def of(packets: PacketBatch) -> Distances:
        """Measure the distances of the packets' sources."""
        networks, place = np.unique(_network(packets), return_inverse=True)
        least, most = np.full(len(networks), 255), np.zeros(len(networks), np.intp)
        hops = _hops(packets)
        np.minimum.at(least, place, hops)
        np.maximum.at(most, place, hops)
        return Distances(networks, least, most)

    def changed(self, packets: PacketBatch, rows: Rows) -> tuple[int, float] | None:
        """Return the number of known networks among the rows, and the share of them at a changed distance.

        None if too few are known. Each network has equal weight, whatever it sends.
        """
        some = packets.select(rows)
        place = np.searchsorted(self.networks, network := _network(some))
        place = np.minimum(place, len(self.networks) - 1)
        met = self.networks[place] == network if len(self.networks) else np.zeros(len(rows), np.bool_)
        place, hops = place[met], _hops(some)[met]
        off = (hops < self.least[place] - _SLACK) | (hops > self.most[place] + _SLACK)
        seen = np.bincount(place, minlength=1)
        known = seen > 0
        if known.sum() < _NETWORKS:
            return None
        return int(known.sum()), float((np.bincount(place, off)[known] / seen[known]).mean())


def _network(packets: PacketBatch) -> U64:
    four = packets.family == 4
    return np.where(four, packets.src_lo >> np.uint64(8), packets.src_hi >> np.uint64(16))


def _hops(packets: PacketBatch) -> _Hops:
    ttl = packets.ttl.astype(np.intp)
    return np.asarray(_FIRST[np.searchsorted(_FIRST, ttl)] - ttl, np.intp)


# Not routed on the internet (RFC 6890), except for private and test networks, which labs use.
_BOGONS = ((0, 8), (100 << 24 | 64 << 16, 10), (127 << 24, 8), (169 << 24 | 254 << 16, 16), (224 << 24, 3))
# Legacy /8s of the US DoD and similar: a twentieth of the space with next to no traffic, so uniformly
# random addresses fall there and real ones don't.
_QUIET = (6, 7, 11, 21, 22, 25, 26, 28, 29, 30, 33, 55, 56, 214, 215)
_PLACES = np.arange(0, 1024, 256)  # of the counts of four octets in one table
_BLOCK = np.uint64(16)  # bits of an address below its /16


def _blocks(networks: list[tuple[int, int]]) -> Mask:
    """Mark the /16s that lie in the networks."""
    marked = np.zeros(1 << 16, np.bool_)
    for base, length in networks:
        first = base >> 16
        marked[first : first + (1 << (16 - length))] = True
    return marked


# By /16: 1 for networks that send no traffic, 2 for unroutable ones, 3 for both
_UNUSED = _blocks([(first << 24, 8) for first in _QUIET]) + np.uint8(2) * _blocks([*_BOGONS])
_MANY = 200  # sources: the distribution of fewer says nothing


class Spoof(Struct, frozen=True):
    """The probability that the sources are spoofed, and the evidence."""

    probability: float
    evidence: tuple[str, ...]


def spoof_estimate(
    features: Features,
    own: Mask,
    *,
    prior: float = 0.0,
    completed: float = 0.0,
    before: Distances | None = None,
) -> Spoof:
    """Estimate whether the sources of an attack are spoofed.

    `prior` is the log-odds that the kind itself gives (reflectors and completed handshakes are real);
    `completed` the share of its flows that continued after the handshake, `before` the known distances. `own`
    marks packets of the window that claim to come from this host.
    """
    traffic, rows = features.traffic, features.rows
    if len(rows) == 0:
        return Spoof(0.0, ())
    packets, counts = traffic.packets, features.source_counts
    first = rows.take(features.by_source[0])
    signs = _reuse(features)
    if (part := part_marked(own.take(rows))) > 0.01:
        signs.append((5.0, f"{percent(part)} of the packets claim to come from this host itself"))
    four = packets.family.take(first) == 4
    if marked(four) >= len(first) / 2:
        addresses = packets.src_lo.take(first)[four]
        blocks = (addresses >> _BLOCK).astype(np.uint16)
        signs += [*_space(blocks), *_pattern(addresses, blocks)]
    else:
        six = first[packets.family.take(first) == 6]
        signs += _space6(packets.src_hi.take(six), packets.src_lo.take(six))
    signs += _ttl_before(traffic, rows, before) or _ttl(traffic, rows, len(first))
    if features.n >= _REPEATED * _REPEATING and marked(counts >= _REPEATED) >= _REPEATING:
        signs += _ttl_kept(traffic, rows)
    if completed > 0.2:
        signs.append((-4.0, f"{percent(completed)} of the flows continued after the handshake"))
    odds = prior + sum(weight for weight, _ in signs)
    telling = sorted(signs, key=lambda sign: -abs(sign[0]))
    agreeing = tuple(sentence for weight, sentence in telling if (weight > 0) == (odds > 0))
    return Spoof(1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, odds)))), agreeing)


def _reuse(features: Features) -> list[Sign]:
    """Weigh reuse: real hosts send several packets, spoofed sources are drawn anew for each."""
    sources, packets, once = features.sources, features.n, features.singles
    if sources < 50 and once < 0.9:
        few = f"only {plural(sources, 'source')} for {packets:,} sampled packets"
        return [(-3.0, f"{few}: each address is reused")]
    if sources >= _MANY and once > 0.9:
        return [(1.2, f"{percent(once)} of the sampled packets have a unique source ({sources:,} seen)")]
    per = packets / sources
    often = f"{sources:,} sources sent {per:.0f} sampled packets each (mean)"
    return [(-5.5 if per >= 8 else -3.0, often)] if per >= 3 else []


def _space(blocks: U16) -> list[Sign]:
    """Weigh unused address space, by the /16 of each source: random addresses fall there."""
    n = len(blocks)
    if n < 30:
        return []
    _, silent, routeless, both = np.bincount(_UNUSED.take(blocks), minlength=4).tolist()
    bogon, quiet = (routeless + both) / n, (silent + both) / n
    signs = []
    if bogon > 0.01:
        signs.append((4.0, f"{percent(bogon, 1)} of the sources are unroutable addresses"))
    if n < _MANY and bogon <= 0.01 and (silent + routeless + both) / n > 0.06:
        signs.append((2.0, f"{percent(quiet)} of the sources lie in networks that send no traffic"))
    if n >= _MANY and quiet > 0.03:
        signs.append((3.0, f"{percent(quiet, 1)} of the sources lie in networks that send no traffic"))
    elif n >= _MANY and quiet < 0.01 and bogon < 0.002:
        signs.append((-1.5, "no source lies in an unused network, unlike random addresses"))
    return signs


def _pattern(addresses: U64, blocks: U16) -> list[Sign]:
    """Weigh the distribution of octets and /16s: random or clustered."""
    if len(addresses) < _MANY:
        return []
    entropies = _octet_entropies(addresses)
    full = min(8.0, math.log2(len(addresses)))
    signs = []
    if entropies[3] < 3.0 and max(entropies[:3]) > 0.85 * full:
        signs.append((3.0, "the last octet of the sources is nearly constant, the others are random"))
    flat = sum(entropy > 0.97 * full for entropy in entropies)
    if flat == 4 and len(addresses) >= 1000:
        signs.append((1.5, "all four octets of the sources are uniformly random"))
    networks = len(distinct_values(blocks))
    expected = 65_536 * (1 - math.exp(-len(addresses) / 65_536))
    if networks > 0.8 * expected:
        signs.append((1.0, f"spread over {networks:,} /16s: no prefix stands out"))
    elif len(addresses) >= 1000 and _even(addresses):
        signs.append((2.5, f"within their /8s the sources cover {networks:,} /16s evenly"))
    elif networks < 0.35 * min(expected, len(addresses)) and flat < 3:
        signs.append((-1.0, f"the sources cluster in {networks:,} /16s"))
    return signs


def _even(addresses: U64) -> bool:
    """Check whether sources share a /16 as often as by chance within their /8s; real hosts cluster."""
    of_16, of_8 = (occurrences((addresses >> np.uint64(shift)).astype(np.intp)) for shift in (16, 24))
    by_chance = float((of_8 * (of_8 - 1.0)).sum()) / 256
    return by_chance > 500 and float((of_16 * (of_16 - 1.0)).sum()) < 1.3 * by_chance


def _space6(hi: U64, lo: U64) -> list[Sign]:
    n = len(hi)
    if n < 50:
        return []
    signs = []
    unrouted = (hi >> np.uint64(61) != np.uint64(1)) & (hi >> np.uint64(57) != np.uint64(0x7E))
    if unrouted.mean() > 0.01:
        signs.append((4.0, f"{percent(unrouted.mean(), 1)} of the sources lie outside 2000::/3"))
    if n < _MANY:
        return signs
    apart = len(distinct_values(hi)) > 0.95 * n
    if apart and len(distinct_values(hi >> np.uint64(32))) > 0.5 * n:
        signs.append((2.0, f"nearly every source is in a different /32 ({n:,})"))
    elif apart and _random_subnets(hi):
        random = f"the subnets of {n:,} sources are uniformly random; those of real networks are not"
        signs.append((2.5, random))
    sites = len(distinct_values(hi >> np.uint64(16)))
    if sites < n / 50:
        where = f"only {plural(sites, '/48')}, whose owners can use any address in them"
        signs.append((-4.0, f"{n:,} sources lie in {where}"))
    if (lo < np.uint64(1 << 16)).mean() > 0.3:
        signs.append((-1.0, "many sources have manually assigned interface IDs, as servers do"))
    return signs


def _random_subnets(hi: U64) -> bool:
    """Check for random bits 32 to 63: networks number subnets from 0, or in pools (RFC 7707)."""
    n = len(hi)
    for shift in (24, 16, 8, 0):
        counts = np.bincount(((hi >> np.uint64(shift)) & np.uint64(255)).astype(np.intp)).astype(np.float64)
        alike = float((counts * (counts - 1)).sum()) / (n * (n - 1))  # 1/256 of the pairs by chance
        if alike * 256 > 1.4:
            return False
    return True


def _ttl(traffic: Traffic, rows: Rows, sources: int) -> list[Sign]:
    """Weigh the distribution of TTLs: real sources are at various distances."""
    ttl = traffic.packets.ttl[rows]
    counts = np.bincount(ttl, minlength=256)
    top = int(counts.argmax())
    share = counts[top] / len(ttl)
    if sources >= 100 and share > 0.95:
        return [(1.5, f"all sources arrive with TTL {top}: they have the same distance")]
    used = marked(counts > len(ttl) / 2048)
    if sources >= _MANY and used > 160:
        return [(2.5, f"TTLs are random ({used} values)")]
    if sources >= 50 and 5 <= used <= 120 and share < 0.5:
        return [(-1.0, f"TTLs vary as real distances do ({used} values)")]
    return []


def _ttl_kept(traffic: Traffic, rows: Rows) -> list[Sign]:
    """Weigh whether repeated sources keep their TTL, as real hosts do."""
    ttl = traffic.packets.ttl[rows].astype(np.int16)
    place = traffic.source_id[rows]
    counts = np.bincount(place)
    repeated = counts >= _REPEATED
    if (np.bincount(ttl) > 0).sum() < 5:
        return []
    low, high = np.full(len(counts), 255, np.int16), np.zeros(len(counts), np.int16)
    np.minimum.at(low, place, ttl)
    np.maximum.at(high, place, ttl)
    spread = high - low
    kept = float((spread[repeated] <= 1).mean())
    if kept > 0.9:
        return [(-3.0, "each source keeps its own TTL")]
    if kept < 0.3:
        return [(3.0, "the same source arrives with many TTLs")]
    return []


def _ttl_before(traffic: Traffic, rows: Rows, before: Distances | None) -> list[Sign]:
    """Compare hop distances with those of the same networks in the baseline."""
    found = before.changed(traffic.packets, rows) if before is not None else None
    if found is None:
        return []
    networks, part = f"{found[0]:,} networks known from the baseline", found[1]
    if part > 0.6:
        return [(4.0, f"{percent(part)} of {networks} appear at a different distance (by TTL)")]
    return [(-2.0, f"{networks} keep their distance (by TTL)")] if part < 0.2 else []


def from_this_host(packets: PacketBatch, own: tuple[Prefix, ...]) -> Mask:
    """Mark arrived packets that claim to come from this host: from their destination, or an own address.

    From a loopback address a host talks to itself (RFC 1122 3.2.1.3); those who capture there see that.
    """
    loopback = (packets.family == 4) & (packets.src_lo >> np.uint64(24) == _LOOPBACK)
    loopback |= (packets.family == 6) & (packets.src_hi == 0) & (packets.src_lo == 1)
    ours: Mask = (packets.src_hi == packets.dst_hi) & (packets.src_lo == packets.dst_lo) & ~loopback
    return ours | from_addresses(packets, own)


def _octet_entropies(addresses: U64) -> list[float]:
    """Return the entropy of each octet in bits, the first octet first."""
    n = max(1, len(addresses))
    octets = addresses.astype(">u4").view(np.uint8).reshape(-1, 4) + _PLACES
    counts = np.bincount(octets.reshape(-1), minlength=1024)
    summed = _count_bits(n.bit_length())[counts].reshape(4, 256).sum(1)
    return [math.log2(n) - bits / n for bits in summed.tolist()]


@lru_cache
def _count_bits(size: int) -> F64:
    """Return c log2(c) for all counts of `size` bits: looking them up is faster than logarithms."""
    counts = np.arange(1 << size, dtype=np.float64)
    return np.asarray(counts * np.log2(np.maximum(counts, 1.0)))
