"""The fewest prefixes that cover a given share of an attack's packets but no normal source."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.traffic import Rows
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import F64, U8, U64, Mask, PacketBatch
from fwtop.rehearsal.breadth import SHORTEST

# A prefix of 2**b addresses must hold 2**(b*d) attackers: dense ones first, sparser ones if the list
# would be long otherwise. At 0.25 a /24 needs 4 of them, a /16 needs 16.
_DENSITIES = (0.5, 0.35, 0.25)
_LONG = 256
_GAP = 20.0  # times as much as the next source: that one is somebody else, as a client in between
_LINK_LOCAL = np.uint64(0xFE80 >> 6)  # fe80::/10 (RFC 4291 2.5.6)
_MOST = 0.5  # of the weight lies above a gap that counts
_Groups = tuple[U64, U64, F64]  # each group's lowest and highest address and its weight


class Addresses(Struct, frozen=True, dict=True):
    """Source addresses as columns."""

    family: U8
    src_hi: U64
    src_lo: U64

    @staticmethod
    def of(packets: PacketBatch, rows: Rows | slice = slice(None)) -> Addresses:
        """Return the sources of the rows."""
        return Addresses(packets.family[rows], packets.src_hi[rows], packets.src_lo[rows])

    @cached_property
    def distinct(self) -> dict[int, U64]:
        """The distinct addresses of each family, of IPv6 the upper halves, ascending."""
        four, six = self.family == 4, self.family == 6
        return {4: np.unique(self.src_lo[four]), 6: np.unique(self.src_hi[six])}


class Cover(Struct, frozen=True):
    """Prefixes, heaviest first, and the share of the attack's weight that they cover."""

    prefixes: tuple[Prefix, ...]
    share: float
    sources: int


def fewest_prefixes(
    attack: Addresses,
    weight: F64,
    normal: Addresses,
    *,
    target: float,
    limit: int,
) -> Cover:
    """Choose at most `limit` prefixes that cover `target` of the weight.

    From short (by family; first those that just need no typed confirmation) to long: a prefix is chosen if
    enough of its addresses attack and it contains no normal source. IPv6 prefixes end at /64, which one host
    owns (RFC 6177).
    """
    total = float(weight.sum())
    if total == 0:
        return Cover((), 0.0, 0)
    parts: list[tuple[Prefix, float]] = []
    sources = 0
    for family in (4, 6):
        rows = np.flatnonzero(attack.family == family)
        if len(rows) == 0:
            continue
        column = "src_lo" if family == 4 else "src_hi"
        values, inverse = np.unique(getattr(attack, column)[rows], return_inverse=True)
        sums = np.asarray(np.bincount(inverse, weight[rows], len(values)), np.float64)
        heavy = _heaviest(sums, target)
        sources += int(heavy.sum())
        for density in _DENSITIES:
            found = _cover(
                family, values[heavy], sums[heavy], normal.distinct[family], (density, SHORTEST[family])
            )
            if len(found[0]) <= _LONG:
                break
        parts += _prefixes(family, found)
    parts.sort(key=lambda item: -item[1])
    chosen: list[Prefix] = []
    covered = 0.0
    for prefix, mass in parts[:limit]:
        chosen.append(prefix)
        covered += mass
        if covered >= target * total:
            break
    return Cover(tuple(chosen), covered / total, sources)


def neighbours(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows whose IPv6 sources share this host's link: there, a /64 is everybody and not one host."""
    high = packets.src_hi[rows]
    link_local = high >> np.uint64(54) == _LINK_LOCAL
    return np.asarray((packets.family[rows] == 6) & ((high == packets.dst_hi[rows]) | link_local))


def single_hosts(packets: PacketBatch, rows: Rows, weight: F64, *, target: float) -> Cover:
    """Choose the addresses, each a /128, that send `target` of the weight; none if they are more than 256."""
    halves = np.stack([packets.src_hi[rows], packets.src_lo[rows]], axis=1)
    found, inverse = np.unique(halves, axis=0, return_inverse=True)
    sums = np.asarray(np.bincount(inverse.reshape(-1), weight, len(found)), np.float64)
    heavy = np.flatnonzero(_heaviest(sums, target)) if len(found) else np.zeros(0, np.intp)
    if not 0 < len(heavy) <= _LONG:
        return Cover((), 0.0, 0)
    heavy = heavy[np.argsort(-sums[heavy])]
    prefixes = tuple(Prefix(6, high << 64 | low, 128) for high, low in found[heavy].tolist())
    return Cover(prefixes, float(sums[heavy].sum() / sums.sum()), len(prefixes))


def _heaviest(sums: F64, target: float) -> Mask:
    """Mark the fewest sources that send the target share, or those above a gap that send most.

    The tail isn't worth its entries, and what lies below a gap are clients that the attack is mixed with.
    """
    order = np.argsort(sums)[::-1]
    ordered, total = sums[order], sums.sum()
    sent = np.cumsum(ordered)
    needed = int(np.searchsorted(sent, target * total * (1 - 1e-9))) + 1
    gaps = np.flatnonzero((ordered[:-1] > _GAP * ordered[1:]) & (sent[:-1] >= _MOST * total))
    if len(gaps):
        needed = min(needed, int(gaps[0]) + 1)
    mask = np.zeros(len(sums), np.bool_)
    mask[order[:needed]] = True
    return mask


def _cover(family: int, values: U64, sums: F64, normal: U64, bounds: tuple[float, int]) -> _Groups:
    """Group the sorted addresses into prefixes that are dense enough and contain no normal source."""
    bits = 32 if family == 4 else 64
    density, shortest = bounds
    found: list[_Groups] = [(values[:0], values[:0], sums[:0])]
    live = np.arange(len(values))
    for length in range(shortest, bits + 1):
        if len(live) == 0:
            break
        shift = np.uint64(bits - length)
        keys = values[live] >> shift
        edges = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        counts = np.diff(np.append(edges, len(live)))
        enough = counts >= (1 if length == bits else max(2.0, 2.0 ** ((bits - length) * density)))
        if length < bits:
            enough[enough] = ~_holds(normal >> shift, keys[edges[enough]])
        if not enough.any():
            continue
        first, last = live[edges[enough]], live[edges[enough] + counts[enough] - 1]
        masses = np.add.reduceat(sums[live], edges)[enough]
        found.append((values[first], values[last], masses))
        live = live[~np.repeat(enough, counts)]
    low, high, mass = (np.concatenate(column) for column in zip(*found, strict=True))
    return low, high, mass


def _holds(ordered: U64, keys: U64) -> Mask:
    """Mark the keys that are among the sorted ones."""
    if len(ordered) == 0:
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.asarray(ordered[at] == keys)


def _prefixes(family: int, groups: _Groups) -> list[tuple[Prefix, float]]:
    """Return the longest prefix that contains each group, with its weight."""
    low, high, mass = groups
    return [
        (_common(family, first, last), weight)
        for first, last, weight in zip(low.tolist(), high.tolist(), mass.tolist(), strict=True)
    ]


def _common(family: int, low: int, high: int) -> Prefix:
    bits = 32 if family == 4 else 64
    length = bits - (low ^ high).bit_length()
    value = low >> (bits - length) << (bits - length)
    return Prefix(family, value if family == 4 else value << 64, length)
