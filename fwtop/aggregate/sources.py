"""Where packets come from: addresses, the prefixes that explain them, autonomous systems, countries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.aggregate.heavy_hitters import HeavyPrefix, heavy_prefixes
from fwtop.aggregate.shares import Scale
from fwtop.aggregate.tally import DROPPED, SAMPLES, VARIANCE, WEIGHT, XDP_DROPPED, Tally, mixed
from fwtop.model.address import Prefix
from fwtop.model.packets import F64, U8, U64, PacketBatch
from fwtop.model.snapshot import Source, Sources
from fwtop.model.window import OriginLookup

# Whoever forges sources could send any number of them: beyond MOST keys the lightest are folded into
# their prefixes of the next length, of which there are fewer and fewer (65,536 of /16 at most).
MOST = 300_000
_KEPT = 160_000  # more than there are prefixes in the end, so that addresses are among them
_FOLDS = {4: (24, 16), 6: (64, 48, 32, 16)}
_CHANCE = 3.0  # standard deviations: of 400 rows shown, chance takes one that far
_SIX = np.uint64(1 << 63)  # set in keys of IPv6: they are hashes, those of IPv4 the address itself


@dataclass(frozen=True, slots=True)
class SourceTallies:
    """Sources by address (or folded prefix), by AS number and by country."""

    address: Tally  # tags: family, length, hi, lo, asn, country
    asn: Tally
    country: Tally

    @staticmethod
    def join(tallies: list[SourceTallies]) -> SourceTallies:
        """Add up."""
        return SourceTallies(
            Tally.join([tally.address for tally in tallies]),
            Tally.join([tally.asn for tally in tallies]),
            Tally.join([tally.country for tally in tallies]),
        )

    def bounded(self) -> SourceTallies:
        """Fold the lightest addresses into their prefixes when there are too many."""
        return (
            self
            if len(self.address) <= MOST
            else SourceTallies(_folded(self.address), self.asn, self.country)
        )


def tally(
    arrived: PacketBatch, sums: F64, dropped: PacketBatch, lost: F64, lookup: OriginLookup
) -> SourceTallies:
    """Count sources of arrived packets, and beside them what the drop hook saw of each."""
    family = np.concatenate((arrived.family, dropped.family))
    hi = np.concatenate((arrived.src_hi, dropped.src_hi))
    lo = np.concatenate((arrived.src_lo, dropped.src_lo))
    both = np.concatenate((sums, lost), axis=1)
    known = family != 0
    if not known.all():
        family, hi, lo, both = family[known], hi[known], lo[known], both[:, known]
    length = np.where(family == 4, np.uint8(32), np.uint8(128))
    tags = {"family": family, "length": length, "hi": hi, "lo": lo}
    address = Tally.of(_keys(family, length, hi, lo), both, tags)
    origin = lookup.columns(address.tags["family"], address.tags["hi"], address.tags["lo"])
    address.tags["asn"], address.tags["country"] = origin.asn, origin.country
    return SourceTallies(
        address,
        Tally.of(origin.asn.astype(np.uint64), address.sums, {}),
        Tally.of(origin.country.astype(np.uint64), address.sums, {}),
    )


def _keys(family: U8, length: U8, hi: U64, lo: U64) -> U64:
    keys = lo | length.astype(np.uint64) << np.uint64(32)
    six = np.flatnonzero(family == 6)
    if len(six):
        keys[six] = mixed(lo[six], mixed(hi[six] + length[six])) | _SIX
    return keys


def _folded(counted: Tally) -> Tally:
    """Fold the lightest keys into shorter prefixes, step by step, until few enough are left."""
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
        keys = _keys(tags["family"], tags["length"], tags["hi"], tags["lo"])
        counted = Tally.join([counted.rows(~light), Tally.of(keys, counted.sums[:, light], tags)])
    return counted


def _masked(family: int, length: int, hi: U64, lo: U64) -> tuple[U64, U64]:
    if family == 4:
        return hi, lo & np.uint64(0xFFFFFFFF << (32 - length) & 0xFFFFFFFF)
    mask = ((1 << length) - 1) << (128 - length)
    return hi & np.uint64(mask >> 64), lo & np.uint64(mask & 0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Drops:
    """How samples of the drop hook are scaled to its exact count."""

    scale: float
    each: float  # packets that one such sample stands for
    overall: float  # share of everything that arrived which was dropped, exact

    def share(self, sums: F64, factor: float) -> list[float]:
        """Return for each column the share of its packets that was dropped; `factor` scales arrivals.

        A quotient of two samples, noisy where they are few; but a rule mostly drops all of a source or
        nothing, so a quotient is taken for the overall share or for all if chance alone would bring it that
        far. Nothing dropped stays nothing: real users with few packets must not look dropped.
        """
        arrived = np.maximum(sums[WEIGHT] * factor, 1e-9)
        later = sums[DROPPED] * self.scale
        part = (sums[XDP_DROPPED] * factor + later) / arrived
        spread = later * (self.each if self.each > 1 else 0.0) + part**2 * sums[VARIANCE] * factor**2
        reach = _CHANCE * np.sqrt(spread) / arrived
        ends = np.array([self.overall, 1.0])[:, None]
        nearest = np.abs(part - ends).argmin(axis=0)
        end = ends[nearest, 0]
        taken = np.where((np.abs(part - end) <= reach) & (part > 0), end, part)
        return [float(value) for value in np.clip(taken, 0.0, 1.0)]


def tables(counted: SourceTallies, scale: Scale, drops: Drops, lookup: OriginLookup, top: int) -> Sources:
    """Return the four tables of sources, each with most packets first."""
    total = float(scale.total[WEIGHT])
    factor = scale.packets / total if total > 0 else 0.0
    whole = counted.address
    seen = whole if bool((whole.sums[SAMPLES] > 0).all()) else whole.rows(whole.sums[SAMPLES] > 0)
    maker = _Maker(scale, drops, factor, lookup)
    single = seen.rows(seen.tags["length"] == np.where(seen.tags["family"] == 4, 32, 128))
    return Sources(
        address=maker.addresses(single, top),
        prefix=maker.prefixes(seen, heavy_prefixes(seen, total, top)),
        asn=maker.numbered(counted.asn, top, lambda key: f"AS{key}", asn=True),
        country=maker.numbered(counted.country, top, lambda key: chr(key >> 8) + chr(key & 0xFF), asn=False),
    )


@dataclass(frozen=True, slots=True)
class _Maker:
    """Turns sums into rows."""

    scale: Scale
    drops: Drops
    factor: float
    lookup: OriginLookup

    def addresses(self, counted: Tally, top: int) -> tuple[Source, ...]:
        found = self.scale.top(counted, top)
        dropped = self.drops.share(counted.sums[:, [row for row, _ in found]], self.factor)
        out = []
        for (row, share), lost in zip(found, dropped, strict=True):
            tags = {name: int(tag[row]) for name, tag in counted.tags.items()}
            prefix = Prefix.of_columns(tags["family"], tags["hi"], tags["lo"])
            country, asn = country_text(tags["country"]), tags["asn"] or None
            name = self.lookup.as_name(asn) if asn else None
            out.append(Source(str(prefix), share, lost, country, asn, name, prefix))
        return tuple(out)

    def prefixes(self, counted: Tally, found: list[HeavyPrefix]) -> tuple[Source, ...]:
        if not found:
            return ()
        sums = np.stack([item.sums for item in found], axis=1)
        dropped = self.drops.share(sums, self.factor)
        out = []
        for item, share, lost in zip(found, self.scale.shares(sums), dropped, strict=True):
            asn = _common(counted.tags["asn"], item.rows)
            country = _common(counted.tags["country"], item.rows)
            name = self.lookup.as_name(asn) if asn else None
            out.append(
                Source(str(item.prefix), share, lost, country_text(country), asn or None, name, item.prefix)
            )
        return tuple(out)

    def numbered(self, counted: Tally, top: int, text: Any, *, asn: bool) -> tuple[Source, ...]:  # noqa: ANN401
        counted = counted.rows((counted.keys != 0) & (counted.sums[SAMPLES] > 0))
        rows = counted.largest(top)
        sums = counted.sums[:, rows]
        dropped = self.drops.share(sums, self.factor)
        out = []
        for key, share, lost in zip(
            counted.keys[rows].tolist(), self.scale.shares(sums), dropped, strict=True
        ):
            if asn:
                out.append(Source(text(key), share, lost, None, key, self.lookup.as_name(key)))
            else:
                out.append(Source(text(key), share, lost, text(key)))
        return tuple(out)


def country_text(country: int) -> str | None:
    """Return the two letters of a country's number."""
    return chr(country >> 8) + chr(country & 0xFF) if country else None


def _common(column: NDArray[Any], rows: NDArray[np.intp]) -> int:
    """Return the value that all rows have, else 0."""
    values = column[rows]
    return int(values[0]) if len(values) and bool((values == values[0]).all()) else 0
