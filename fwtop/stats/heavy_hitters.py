"""Hierarchical heavy hitters: the shortest list of prefixes that explains the sources of the packets.

A prefix is listed when what is left of it, after the listed prefixes below it are taken out, is a fair
part of all packets (discounted counts: Cormode, Korn, Muthukrishnan, Srivastava, "Finding hierarchical
heavy hitters in streaming data", TKDD 2008). Their definition prefers the longest prefixes, so a /24
that attacks with all its hosts falls into many /28; here a prefix over which sources are spread evenly is
one row, with the addresses that stick out of it beside. The search goes top down through sorted
addresses, so its cost depends on what is heavy and not on how many sources there are.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import F64
from fwtop.stats.sums import SAMPLES, WEIGHT, KeyedSums

THRESHOLD = 0.01  # of all packets
_BROADEST = {4: 8, 6: 16}  # /8 and /16: a shorter prefix explains nothing and blocks too much
_BROAD = {4: 16, 6: 32}  # a prefix shorter than this must explain up to four times THRESHOLD
_SINGLE = {4: 32, 6: 128}
_FEW_SAMPLES = 3
_OUTSTANDING = 0.2  # an address with this share of its prefix is listed separately
_BLOCK_BITS, _FINE_BITS = 4, 8
_EVEN_BLOCKS, _EVEN_FINE = 10.0, 64.0  # of 16 and of 256 subprefixes are in use where they spread evenly


class HeavyPrefix(Struct, frozen=True):
    """A listed prefix: sums without those of its listed descendants, and all rows that it covers."""

    prefix: Prefix
    sums: F64
    rows: NDArray[np.intp]


def heavy_prefixes(counted: KeyedSums, total: float, top: int) -> list[HeavyPrefix]:
    """Return at most `top` prefixes, heaviest first; `total` is the weight of everything.

    `counted` has tags family, length, hi and lo; keys may be prefixes too (folded addresses).
    """
    if total <= 0:
        return []
    found: list[HeavyPrefix] = []
    for family in (4, 6):
        rows = _in_heavy_broadest(counted, family, total * THRESHOLD)
        if len(rows):
            found += _Search(counted, rows, family, total * THRESHOLD).run()
    found.sort(key=lambda item: (-item.sums[WEIGHT], item.prefix))
    return found[:top]


def _in_heavy_broadest(counted: KeyedSums, family: int, least: float) -> NDArray[np.intp]:
    """Return the rows in the heavy ones of the broadest prefixes; usually few, which saves sorting."""
    rows = np.flatnonzero(counted.tags["family"] == family)
    column, width = ("lo", 32) if family == 4 else ("hi", 64)
    length = _BROADEST[family]
    head = (counted.tags[column][rows] >> np.uint64(width - length)).astype(np.int64)
    heavy = np.bincount(head, counted.sums[WEIGHT, rows], 1 << length) >= least
    return rows[heavy[head]]


class _Search:
    """The addresses of one family in ascending order, with running sums over them."""

    def __init__(self, counted: KeyedSums, rows: NDArray[np.intp], family: int, least: float) -> None:
        hi, lo = counted.tags["hi"][rows], counted.tags["lo"][rows]
        length = counted.tags["length"][rows]
        self.folded = bool((length < _SINGLE[family]).any())
        order = np.argsort(lo) if family == 4 and not self.folded else np.lexsort((length, lo, hi))
        self.rows = rows[order]
        self.hi, self.lo = hi[order], lo[order]
        self.length = counted.tags["length"][self.rows]
        self.sums = counted.sums[:, self.rows]
        self.running = np.concatenate((np.zeros((len(self.sums), 1)), np.cumsum(self.sums, axis=1)), axis=1)
        self.weight = self.running[WEIGHT]
        self.family = family
        self.least = least
        self.found: list[HeavyPrefix] = []

    def run(self) -> list[HeavyPrefix]:
        """Search below each of the broadest prefixes."""
        length = _BROADEST[self.family]
        column, width = (self.lo, 32) if self.family == 4 else (self.hi, 64)
        head = column >> np.uint64(width - length)
        edges = np.flatnonzero(np.concatenate(([True], head[1:] != head[:-1], [True])))
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if self.total(start, stop) >= self.least:
                self.explain(start, stop, length)
        return self.found

    def total(self, start: int, stop: int) -> float:
        """Return the weight of a slice of rows."""
        return float(self.weight[stop] - self.weight[start])

    def explain(self, start: int, stop: int, length: int) -> F64:
        """List the prefixes that explain a slice, all within one prefix; return the listed sums."""
        length = self.tightest(start, stop, length)
        inner = self.behind_own(start, stop, length)
        if inner == stop:
            return self.list_node(start, stop, length, np.zeros(len(self.sums)))
        if 2 * self.total(start, inner) >= self.total(start, stop) or self.is_even(inner, stop, length):
            return self.list_even(start, stop, length)
        listed = np.zeros(len(self.sums))
        middle = self.middle(inner, stop, length)
        for first, last in ((inner, middle), (middle, stop)):
            if last > first and self.total(first, last) >= self.least:
                listed = listed + self.explain(first, last, length + 1)
        # The remainder belongs to this prefix, unless it is too small to matter
        left = self.total(start, stop) - listed[WEIGHT]
        return self.list_node(start, stop, length, listed) if left >= self.needed(length) else listed

    def behind_own(self, start: int, stop: int, length: int) -> int:
        """Return the end of the rows that are this prefix itself: an address, or folded light ones."""
        while start < stop and self.length[start] <= length:
            start += 1
        return start

    def needed(self, length: int) -> float:
        """Return the weight above which a remainder gets a row; higher for a broad prefix."""
        broad = _BROAD[self.family]
        span = broad - _BROADEST[self.family]
        return self.least * (1.0 + 3.0 * max(0, broad - length) / span)

    def tightest(self, start: int, stop: int, length: int) -> int:
        """Return the length of the longest prefix that holds the whole slice, at least `length`."""
        first, last = start, stop - 1
        high = int(self.hi[first] ^ self.hi[last]).bit_length()
        low = int(self.lo[first] ^ self.lo[last]).bit_length()
        common = 64 - high if high else _SINGLE[self.family] - low
        if self.folded:
            common = min(common, int(self.length[start:stop].min()))
        return max(length, common)

    def place(self, length: int) -> tuple[NDArray[np.uint64], int]:
        """Return the column that holds the bit after `length`, and the number of bits behind it."""
        if self.family == 4:
            return self.lo, 32 - length
        return (self.hi, 64 - length) if length < 64 else (self.lo, 128 - length)

    def middle(self, start: int, stop: int, length: int) -> int:
        """Return where the second half of the prefix begins in the slice."""
        column, rest = self.place(length)
        bound = (int(column[start]) >> rest << rest) + (1 << (rest - 1))
        return start + int(np.searchsorted(column[start:stop], np.uint64(bound)))

    def is_even(self, start: int, stop: int, length: int) -> bool:
        """Check whether sources are spread over the whole prefix, apart from a few outliers."""
        fine = (self.family == 4 and length < 24) or (self.family == 6 and length < 48)
        if stop - start < (_EVEN_FINE if fine else _EVEN_BLOCKS):
            return False
        if self.effective_parts(start, stop, length, _BLOCK_BITS) < _EVEN_BLOCKS:
            return False
        return not fine or self.effective_parts(start, stop, length, _FINE_BITS) >= _EVEN_FINE

    def effective_parts(self, start: int, stop: int, length: int, bits: int) -> float:
        """Return the effective number of subprefixes (`bits` longer) in use, by the entropy of weights."""
        column, rest = self.place(length)
        bits = min(bits, rest)
        base = int(column[start]) >> rest << rest
        bounds = base + (np.arange(1, 1 << bits, dtype=np.uint64) << np.uint64(rest - bits))
        edges = start + np.searchsorted(column[start:stop], bounds.astype(np.uint64))
        weight = self.weight[np.concatenate(([start], edges, [stop]))]
        part = np.diff(weight)
        for row in self.outstanding(start, stop):
            part[int(column[row]) - base >> rest - bits] -= self.sums[WEIGHT, row]
        part = part[part > 0] / max(float(part.sum()), 1e-12)
        return float(np.exp(-(part * np.log(part)).sum()))

    def outstanding(self, start: int, stop: int) -> list[int]:
        """Return the rows that individually have a large share of the slice."""
        weight = self.sums[WEIGHT, start:stop]
        return (start + np.flatnonzero(weight >= _OUTSTANDING * self.total(start, stop))).tolist()

    def list_even(self, start: int, stop: int, length: int) -> F64:
        """List an evenly used prefix, preceded by its outliers."""
        listed = np.zeros(len(self.sums))
        for row in self.outstanding(start, stop) if stop - start > 1 else ():
            listed = listed + self.list_node(row, row + 1, int(self.length[row]), np.zeros(len(self.sums)))
        return self.list_node(start, stop, length, listed)

    def list_node(self, start: int, stop: int, length: int, below: F64) -> F64:
        """List a prefix without its listed descendants if enough remains; return all listed sums."""
        left = self.running[:, stop] - self.running[:, start] - below
        if left[WEIGHT] < self.least or (left[SAMPLES] < _FEW_SAMPLES and left[WEIGHT] < 10 * self.least):
            return below
        prefix = Prefix.of_columns(self.family, int(self.hi[start]), int(self.lo[start]), length)
        self.found.append(HeavyPrefix(prefix, np.maximum(left, 0.0), self.rows[start:stop]))
        return below + left
