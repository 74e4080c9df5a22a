"""Features of a set of packets, which hypotheses compare and sentences quote, and whom the packets hit."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.analysis.window import counting
from fwtop.analysis.window.traffic import Rows, Traffic, distinct_texts, transport_start, weighted_top
from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.traffic.packets import F64, I64, U8, U64
from fwtop.render.numbers import duration_words

_UNMET = 0.02  # share of packets from sources that were not sampled


class Top(Struct, frozen=True):
    """The most common value of a field, its share of the weight, and the number of distinct values."""

    value: int
    share: float
    distinct: int


class Features(Struct, frozen=True, dict=True):
    """Statistics of some rows of the traffic, each computed on first use."""

    traffic: Traffic
    rows: Rows
    feature_rows: int = 4_096

    @cached_property
    def weight(self) -> F64:
        """Weights of the rows."""
        return self.traffic.weight[self.rows]

    @cached_property
    def packets(self) -> float:
        """Estimated packets."""
        return float(self.weight.sum())

    @property
    def n(self) -> int:
        """Sampled packets."""
        return len(self.rows)

    @cached_property
    def share(self) -> float:
        """Part of all arrived packets."""
        return self.packets / self.traffic.total if self.traffic.total else 0.0

    @cached_property
    def byte_share(self) -> float:
        """Part of all arrived bytes."""
        size = float((self.weight * self.traffic.packets.length[self.rows]).sum())
        return size / self.traffic.total_bytes if self.traffic.total_bytes else 0.0

    @cached_property
    def pps(self) -> float:
        """Packets per second."""
        return self.packets / self.traffic.seconds

    @cached_property
    def peak_pps(self) -> float:
        """Packets in the busiest second of the window: an onset must not wait for the window to fill."""
        if self.traffic.seconds < 2 or not self.n:
            return self.pps
        return max(self.pps, float(np.bincount(self.traffic.second[self.rows], self.weight).max()))

    def amount(self, what: str) -> str:
        """Write the estimated packets with the length of the window they are of."""
        seconds = self.traffic.seconds
        length = duration_words(seconds) if seconds >= 10 else f"{max(seconds, 0.01):.2g} s"
        return f"{self.packets:,.0f} {what} in {length}"

    @property
    def source_counts(self) -> NDArray[np.intp]:
        """Sampled packets of each distinct source."""
        return self.by_source[1]

    @cached_property
    def by_source(self) -> tuple[Rows, NDArray[np.intp]]:
        """Where in `rows` each distinct source comes first, and how many packets it has."""
        return counting.first_of_each(self.traffic.source_id[self.rows])

    @cached_property
    def flow_counts(self) -> NDArray[np.intp]:
        """Sampled packets of each distinct flow."""
        return counting.occurrences(self.traffic.flow_id[self.rows])

    @property
    def sources(self) -> int:
        """Distinct sources seen."""
        return len(self.source_counts)

    @cached_property
    def likely_sources(self) -> float:
        """Estimated sources, with those that the sample misses."""
        return _likely(self.source_counts)

    @cached_property
    def likely_destinations(self) -> float:
        """Estimated addresses that are hit, with those that the sample misses."""
        return _likely(np.bincount(counting.numbered(self.traffic.dest_key[self.rows])))

    @cached_property
    def likely_flows(self) -> float:
        """Estimated flows, with those that the sample misses."""
        return min(_likely(self.flow_counts), self.packets)

    @property
    def senders(self) -> str:
        """The number of sources in words, "at least" if the sample misses some.

        The share of packets whose source was sampled once estimates that of unseen sources (Good 1953).
        """
        partly = self.packets > 1.05 * self.n and self.singles > _UNMET
        return f"{'at least ' * partly}{self.sources:,} source{'' if self.sources == 1 else 's'}"

    @cached_property
    def singles(self) -> float:
        """Part of the sampled packets whose source was seen once."""
        return counting.marked(self.source_counts == 1) / self.n if self.n else 0.0

    @cached_property
    def evenness(self) -> float:
        """Squared coefficient of variation of the sources' rates: 0 if all are equal, as bots' are.

        Of real clients a few send most, which gives 1 and more. What sampling adds to the variance is
        subtracted (Poisson).
        """
        mean = float(self.source_counts.mean()) if self.n else 0.0
        return max(0.0, float(self.source_counts.var()) - mean) / mean**2 if mean else 0.0

    @cached_property
    def flow_singles(self) -> float:
        """Part of the sampled packets whose flow was seen once."""
        return counting.marked(self.flow_counts == 1) / self.n if self.n else 0.0

    @cached_property
    def pps_per_source(self) -> float:
        """Mean packets per second per source; too low if sampling misses sources."""
        return self.pps / self.sources if self.sources else 0.0

    @cached_property
    def mean_length(self) -> float:
        """Mean IP length in bytes."""
        lengths = self.traffic.packets.ip_length[self.rows]
        return float((lengths * self.weight).sum() / self.packets) if self.packets else 0.0

    def top(self, column: str) -> Top:
        """Return the most common value of a packet column."""
        if column not in self._tops:
            self._tops[column] = top_of(getattr(self.traffic.packets, column)[self.rows], self.weight)
        return self._tops[column]

    @cached_property
    def _tops(self) -> dict[str, Top]:
        return {}

    @cached_property
    def destinations(self) -> Top:
        """The most common destination (as a key)."""
        return top_of(self.traffic.dest_key[self.rows], self.weight)

    @cached_property
    def target(self) -> str:
        """The most common destination as text."""
        at = self.rows[np.argmax(self.traffic.dest_key[self.rows] == np.uint64(self.destinations.value))]
        packets = self.traffic.packets
        return format_address(int(packets.family[at]), int(packets.dst_hi[at]), int(packets.dst_lo[at]))

    @cached_property
    def sample(self) -> Rows:
        """At most `feature_rows` rows, evenly spaced, for payload statistics."""
        return self.spread(self.feature_rows)

    def spread(self, limit: int) -> Rows:
        """Return at most `limit` rows, evenly spaced."""
        return self.rows if self.n <= limit else self.rows.take(evenly(self.n, limit))

    @cached_property
    def head(self) -> tuple[U8, I64]:
        """The first 64 payload bytes of `sample`, and how many of each were captured."""
        return self.traffic.heads(self.sample)

    @cached_property
    def payload_variety(self) -> float:
        """Distinct payload prefixes (32 bytes) per packet: 0 constant, 1 all different."""
        matrix, length = self.head
        full = matrix[length > 0]
        return len(counting.distinct_values(distinct_texts(full[:, :32]))) / len(full) if len(full) else 0.0

    @cached_property
    def payload_entropy(self) -> float:
        """Entropy of the captured payload bytes in bits per byte: 8 is random, 0 constant."""
        p = self._bytes[self._bytes > 0] / max(1, self._bytes.sum())
        return float(0.0 - (p * np.log2(p)).sum())

    @cached_property
    def zero_bytes(self) -> float:
        """Part of the captured payload bytes that are zero."""
        counts = self._bytes
        return float(counts[0]) / float(counts.sum()) if counts.any() else 0.0

    @cached_property
    def _bytes(self) -> NDArray[np.intp]:
        """How often each byte occurs in the captured payloads; the padding of `head` doesn't count."""
        matrix, length = self.head
        counts = np.bincount(matrix.reshape(-1), minlength=256)
        counts[0] -= matrix.size - int(length.sum())
        return counts

    @cached_property
    def notes(self) -> dict[str, Any]:
        """Cached results of parsers."""
        return {}

    def constants(self, columns: tuple[str, ...], floor: float = 0.95) -> dict[str, Top]:
        """Return the columns in which one value has at least `floor` of the weight."""
        return {name: top for name in columns if (top := self.top(name)).share >= floor}


def evenly(n: int, limit: int) -> Rows:
    """Return the numbers of `limit` of n rows, evenly spaced, as `linspace` does in five times as long."""
    places = (np.arange(limit) * ((n - 1) / max(1, limit - 1))).astype(np.intp)
    places[-1] = n - 1
    return places


def _likely(counts: NDArray[np.intp]) -> float:
    """Estimate how many classes there are, from how many the sample holds once and twice.

    Source: Chao, "Nonparametric estimation of the number of classes in a population" (1984).
    """
    once, twice = (counting.marked(counts == times) for times in (1, 2))
    return len(counts) + once * (once - 1) / (2 * (twice + 1))


def header_words(traffic: Traffic, rows: Rows) -> U8:
    """Return the TCP data offset of each row in words (5: no options); 0 if not captured."""
    packets = traffic.packets
    start = transport_start(packets, rows)
    good = (start >= 0) & (start + 13 <= packets.captured[rows])
    words = np.zeros(len(rows), np.uint8)
    words[good] = packets.data[rows[good], start[good] + 12] >> 4
    return words


def top_of(values: NDArray[Any], weight: F64) -> Top:
    """Return the most common value by weight."""
    if len(values) == 0:
        return Top(0, 0.0, 0)
    if counting.all_alike(values):
        return Top(int(values[0]), 1.0 if weight.any() else 0.0, 1)
    distinct, sums = counting.weights_of(values, weight)
    heaviest, total = int(sums.argmax()), float(sums.sum())
    return Top(int(distinct[heaviest]), float(sums[heaviest]) / total if total else 0.0, len(distinct))


_STRAY = 0.1  # of what the median target receives: less is a packet of something else
_NEARLY_ALL = 0.95  # of an attack's packets: that much goes to what it is called after


class Targets(NamedTuple):
    """What an attack's targets receive, the busiest first, and the smallest prefix of nearly all of it."""

    weights: F64  # packets, of those in the prefix
    prefix: Prefix  # of the family that most packets are of


def targets_of(traffic: Traffic, rows: NDArray[np.intp]) -> Targets:
    """Return the targets of an attack's packets, of which there must be one.

    An address that sends more of them than it gets is no target: on a machine that forwards, what answers an
    attack may look like it.
    """
    key, number = traffic.dest_key[rows], counting.numbered(traffic.dest_key[rows])
    weights = np.asarray(np.bincount(number, traffic.weight[rows]), np.float64)
    keys = np.zeros(len(weights), np.uint64)
    keys[number] = key
    theirs = rows[counting.among(traffic.source_key[rows], keys)]
    senders, sent = weighted_top(traffic.source_key[theirs], traffic.weight[theirs])
    sent_by = dict(zip(senders.tolist(), sent.tolist(), strict=True))
    aimed = np.array([sent_by.get(one, 0.0) for one in keys.tolist()]) <= weights
    if not aimed.any():
        aimed[:] = True
    aimed &= weights >= _STRAY * float(np.median(weights[aimed]))
    first = np.zeros(len(weights), np.intp)
    first[number] = rows
    packets, aims = traffic.packets, np.flatnonzero(aimed)
    six = packets.family[first[aims]] == 6
    is_six = bool(six.all()) or 2 * float(weights[aims[six]].sum()) > float(weights[aims].sum())
    aims = aims[six == is_six]
    hi, lo = packets.dst_hi[first[aims]], packets.dst_lo[first[aims]]
    order = np.lexsort((lo, hi))
    return _narrowed(hi[order], lo[order], weights[aims[order]], 6 if is_six else 4)


def _narrowed(hi: U64, lo: U64, weights: F64, family: int) -> Targets:
    """Return the smallest prefix whose addresses, of these ascending ones, receive nearly all."""

    def value(place: int) -> int:
        return int(hi[place]) << 64 | int(lo[place])

    sums = np.append(0.0, np.cumsum(weights))
    low, high = narrower = 0, len(weights)
    while sums[narrower[1]] - sums[narrower[0]] >= _NEARLY_ALL * sums[-1]:
        low, high = narrower
        free = (value(low) ^ value(high - 1)).bit_length()
        if not free:
            break
        upper = value(high - 1) >> free - 1 << free - 1
        middle = bisect_left(range(high), upper, low, key=value)
        narrower = max((low, middle), (middle, high), key=lambda half: sums[half[1]] - sums[half[0]])
    prefix = Prefix(family, value(low) >> free << free, (32 if family == 4 else 128) - free)
    return Targets(np.sort(weights[low:high])[::-1], prefix)
