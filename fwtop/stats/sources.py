"""Where packets come from: addresses, the prefixes that explain them, autonomous systems, countries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import F64, U8, U64, OriginLookup, PacketBatch
from fwtop.model.traffic.snapshot import Share, Source, Sources
from fwtop.stats.heavy_hitters import HeavyPrefix, heavy_prefixes
from fwtop.stats.sums import DROPPED, SAMPLES, VARIANCE, WEIGHT, XDP_DROPPED, KeyedSums, Scale, mixed

# The number of spoofed sources is unlimited: beyond MOST keys the lightest are folded into
# prefixes of the next shorter length (at most 65,536 of /16).
MOST = 300_000
_KEPT = 160_000  # more than the folded prefixes, so that addresses remain
_FOLDS = {4: (24, 16), 6: (64, 48, 32, 16)}
_CHANCE = 3.0  # standard deviations: one of 400 rows exceeds it by chance
_Z = 1.959964  # 95 %
_NARROW = 0.25  # half of an interval that still tells all from half
_SIX = np.uint64(1 << 63)  # set in keys of IPv6: they are hashes, those of IPv4 the address itself


class SourceSums(Struct, frozen=True):
    """Sources by address (or folded prefix), by AS number and by country."""

    address: KeyedSums  # tags: family, length, hi, lo, asn, country
    asn: KeyedSums
    country: KeyedSums

    @staticmethod
    def join(parts: list[SourceSums]) -> SourceSums:
        """Add up."""
        return SourceSums(*(KeyedSums.join(list(same)) for same in zip(*map(astuple, parts), strict=True)))

    def bounded(self) -> SourceSums:
        """Fold the lightest addresses into prefixes if there are too many."""
        return (
            self if len(self.address) <= MOST else SourceSums(_folded(self.address), self.asn, self.country)
        )


def sum_addresses(side: str, arrived: PacketBatch, sums: F64, dropped: PacketBatch, lost: F64) -> KeyedSums:
    """Sum arrived packets by "src" or "dst", and what the drop hook sampled of each.

    Tags: family, length, hi, lo.
    """
    family, both = arrived.family, sums
    hi, lo = (getattr(arrived, f"{side}_{half}") for half in ("hi", "lo"))
    if len(dropped):
        family = np.concatenate((family, dropped.family))
        hi, lo = (
            np.concatenate((mine, getattr(dropped, f"{side}_{half}")))
            for mine, half in ((hi, "hi"), (lo, "lo"))
        )
        both = np.concatenate((sums, lost), axis=1)
    known = family != 0
    if not known.all():
        family, hi, lo, both = family[known], hi[known], lo[known], both[:, known]
    length = np.where(family == 4, np.uint8(32), np.uint8(128))
    tags = {"family": family, "length": length, "hi": hi, "lo": lo}
    return KeyedSums.of(address_keys(family, length, hi, lo), both, tags)


def with_origins(address: KeyedSums, lookup: OriginLookup) -> SourceSums:
    """Sum sources by autonomous system and country, too."""
    origin = lookup.columns(address.tags["family"], address.tags["hi"], address.tags["lo"])
    address.tags["asn"], address.tags["country"] = origin.asn, origin.country
    return SourceSums(
        address,
        KeyedSums.of(origin.asn.astype(np.uint64), address.sums, {}),
        KeyedSums.of(origin.country.astype(np.uint64), address.sums, {}),
    )


def address_keys(family: U8, length: U8, hi: U64, lo: U64) -> U64:
    """Return a key for each address or prefix: IPv4's own number, a hash for IPv6."""
    keys = lo | length.astype(np.uint64) << np.uint64(32)
    six = np.flatnonzero(family == 6)
    if len(six):
        keys[six] = mixed(lo[six], mixed(hi[six] + length[six])) | _SIX
    return keys


def _folded(counted: KeyedSums) -> KeyedSums:
    """Fold the lightest keys into ever shorter prefixes until few enough remain."""
    for step in range(4):
        if len(counted) <= MOST:
            break
        light = np.ones(len(counted), np.bool_)
        light[counted.largest(_KEPT)] = False
        tags = {name: tag[light] for name, tag in counted.tags.items()}
        for family, folds in _FOLDS.items():
            length = folds[min(step, len(folds) - 1)]
            rows = (tags["family"] == family) & (tags["length"] > length)
            tags["hi"][rows], tags["lo"][rows] = _masked(family, length, tags["hi"][rows], tags["lo"][rows])
            tags["length"][rows] = length
        keys = address_keys(tags["family"], tags["length"], tags["hi"], tags["lo"])
        counted = KeyedSums.join([counted.rows(~light), KeyedSums.of(keys, counted.sums[:, light], tags)])
    return counted


def _masked(family: int, length: int, hi: U64, lo: U64) -> tuple[U64, U64]:
    if family == 4:
        return hi, lo & np.uint64(0xFFFFFFFF << (32 - length) & 0xFFFFFFFF)
    mask = ((1 << length) - 1) << (128 - length)
    return hi & np.uint64(mask >> 64), lo & np.uint64(mask & 0xFFFFFFFFFFFFFFFF)


class Dropped(Struct, frozen=True):
    """The estimated share of a source's packets that was dropped, with its 95 % interval."""

    share: float
    low: float
    high: float


class Drops(Struct, frozen=True):
    """Factors that scale samples of the drop hook to the exact count of drops."""

    scale: float
    each: float  # packets that one such sample stands for

    @staticmethod
    def of(sampled: float, counters: Counters, samples: PacketBatch) -> Drops:
        """Return the factors of a window; `sampled` is what all samples of the drop hook stand for."""
        hooked = sum(drop.packets for drop in counters.drops if drop.layer not in ("nic", "xdp"))
        scale = hooked / sampled if sampled > 0 and hooked else 1.0
        each = float(samples.weight.mean()) * scale if len(samples) else 1.0
        return Drops(scale, each)

    def share(self, sums: F64, factor: float) -> list[float]:
        """Return the dropped share of each column's packets without its interval."""
        return [dropped.share for dropped in self.shares(sums, factor)]

    def shares(self, sums: F64, factor: float) -> list[Dropped]:
        """Return the dropped share of each column's packets, by its own samples; `factor` scales arrivals.

        Dropped (L) and arrived packets (A, of which X by XDP) come from samples of their own, so that the
        ratio p = (X + L) / A has the variance ((1 - p)² V_X + V_L + p² (V_A - V_X)) / A². A rule mostly drops
        all of a source: a ratio that may well be 1 is told as 1 where the interval is narrow. No drops stay
        0: clients with few packets must not appear dropped.
        """
        arrived = np.maximum(sums[WEIGHT] * factor, 1e-9)
        early, later = sums[XDP_DROPPED] * factor, sums[DROPPED] * self.scale
        part = (early + later) / arrived
        variance = sums[VARIANCE] * factor**2
        early_variance = variance * np.minimum(early / arrived, 1.0)
        later_variance = later * max(self.each - 1.0, 0.0)
        spread = (1 - part) ** 2 * early_variance + later_variance + part**2 * (variance - early_variance)
        deviation = np.sqrt(np.maximum(spread, 0.0)) / arrived
        # What no sample saw: about two of them, as in Wilson's interval
        unseen = (
            np.where(variance > 0, _Z * _Z / 2 * np.maximum(variance / arrived, self.each), 0.0) / arrived
        )
        reach = _Z * deviation + unseen
        low, high = np.clip(part - reach, 0.0, 1.0), np.clip(part + reach, 0.0, 1.0)
        whole = (part > 0) & (1 - part <= _CHANCE * deviation) & (reach <= _NARROW)
        share = np.clip(np.where(whole, 1.0, part), 0.0, 1.0)
        low, high = np.minimum(low, share), np.maximum(high, share)
        return [Dropped(*row) for row in zip(share.tolist(), low.tolist(), high.tolist(), strict=True)]


def tables(
    counted: SourceSums,
    scale: Scale,
    drops: Drops,
    lookup: OriginLookup,
    top: int,
    *,
    also: Sequence[Prefix] = (),
) -> Sources:
    """Return the four tables of sources, each in descending order of packets.

    `also` are addresses to list in any case, after the others.
    """
    total = float(scale.total[WEIGHT])
    factor = scale.packets / total if total > 0 else 0.0
    whole = counted.address
    seen = whole if bool((whole.sums[SAMPLES] > 0).all()) else whole.rows(whole.sums[SAMPLES] > 0)
    maker = _Maker(scale, drops, factor, lookup)
    single = seen.rows(seen.tags["length"] == np.where(seen.tags["family"] == 4, 32, 128))
    return Sources(
        address=maker.addresses(single, top, also),
        prefix=maker.prefixes(seen, heavy_prefixes(seen, total, top)),
        asn=maker.systems(counted.asn, top),
        country=maker.countries(counted.country, top),
        stale=lookup.stale,
    )


class _Maker(Struct, frozen=True):
    """Turns sums into rows."""

    scale: Scale
    drops: Drops
    factor: float
    lookup: OriginLookup

    def addresses(self, counted: KeyedSums, top: int, also: Sequence[Prefix]) -> tuple[Source, ...]:
        found = self.scale.top(counted, top)
        found += self._named(counted, also, {row for row, _ in found})
        dropped = self.drops.shares(counted.sums[:, [row for row, _ in found]], self.factor)
        out = []
        for (row, share), lost in zip(found, dropped, strict=True):
            tags = {name: int(tag[row]) for name, tag in counted.tags.items()}
            prefix = Prefix.of_columns(tags["family"], tags["hi"], tags["lo"])
            country, asn = country_text(tags["country"]), tags["asn"] or None
            name = self.lookup.as_name(asn) if asn else None
            out.append(_source(str(prefix), share, lost, country, asn=asn, as_name=name, prefix=prefix))
        return tuple(out)

    def _named(
        self, counted: KeyedSums, wanted: Sequence[Prefix], listed: set[int]
    ) -> list[tuple[int, Share]]:
        """Return the rows of addresses that are not listed yet, with their shares."""
        if not wanted or not len(counted):
            return []
        keys = address_keys(
            np.array([item.family for item in wanted], np.uint8),
            np.array([item.length for item in wanted], np.uint8),
            np.array([item.hi for item in wanted], np.uint64),
            np.array([item.lo for item in wanted], np.uint64),
        )
        places = np.minimum(np.searchsorted(counted.keys, keys), len(counted) - 1)
        rows = [row for row in places[counted.keys[places] == keys].tolist() if row not in listed]
        return list(zip(rows, self.scale.shares(counted.sums[:, rows]), strict=True)) if rows else []

    def prefixes(self, counted: KeyedSums, found: list[HeavyPrefix]) -> tuple[Source, ...]:
        if not found:
            return ()
        sums = np.stack([item.sums for item in found], axis=1)
        dropped = self.drops.shares(sums, self.factor)
        out = []
        for item, share, lost in zip(found, self.scale.shares(sums), dropped, strict=True):
            asn = _common(counted.tags["asn"], item.rows)
            country = _common(counted.tags["country"], item.rows)
            name = self.lookup.as_name(asn) if asn else None
            text, where = str(item.prefix), country_text(country)
            out.append(_source(text, share, lost, where, asn=asn or None, as_name=name, prefix=item.prefix))
        return tuple(out)

    def systems(self, counted: KeyedSums, top: int) -> tuple[Source, ...]:
        return tuple(
            _source(f"AS{asn}", share, lost, asn=asn, as_name=self.lookup.as_name(asn))
            for asn, share, lost in self._numbered(counted, top)
        )

    def countries(self, counted: KeyedSums, top: int) -> tuple[Source, ...]:
        return tuple(
            _source(country_text(key) or "", share, lost, country_text(key))
            for key, share, lost in self._numbered(counted, top)
        )

    def _numbered(self, counted: KeyedSums, top: int) -> Iterator[tuple[int, Share, Dropped]]:
        counted = counted.rows((counted.keys != 0) & (counted.sums[SAMPLES] > 0))
        rows = counted.largest(top)
        sums = counted.sums[:, rows]
        shares, dropped = self.scale.shares(sums), self.drops.shares(sums, self.factor)
        return zip(counted.keys[rows].tolist(), shares, dropped, strict=True)


def _source(
    key: str,
    share: Share,
    dropped: Dropped,
    country: str | None = None,
    **named: Any,  # noqa: ANN401
) -> Source:
    low, high = dropped.low, dropped.high
    return Source(key, share, dropped.share, country, dropped_low=low, dropped_high=high, **named)


def country_text(country: int) -> str | None:
    """Return the two letters of a country's number."""
    return chr(country >> 8) + chr(country & 0xFF) if country else None


def _common(column: NDArray[Any], rows: NDArray[np.intp]) -> int:
    """Return the value that all rows share, else 0."""
    values = column[rows]
    return int(values[0]) if len(values) and bool((values == values[0]).all()) else 0
