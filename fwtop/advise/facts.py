"""What a set of packets looks like: the numbers that rules compare and evidence sentences quote."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.advise.traffic import Rows, Traffic, distinct_texts, payload, transport_start, weighted_top
from fwtop.model.address import format_address
from fwtop.model.packets import F64, I64, U8

_UNMET = 0.02  # of the packets are of sources that were not sampled


@dataclass(frozen=True, slots=True)
class Top:
    """The commonest value of a field: how much of the weight it has, and how many values there are."""

    value: int
    share: float
    distinct: int


@dataclass(frozen=True)
class Facts:
    """Statistics of some rows of the traffic, each computed when first asked for."""

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
        return self.traffic.share(self.rows)

    @cached_property
    def pps(self) -> float:
        """Packets a second."""
        return self.packets / self.traffic.seconds

    @cached_property
    def peak_pps(self) -> float:
        """Packets in the busiest second of the window: an onset must not wait for the window to fill."""
        if self.traffic.seconds < 2 or not self.n:
            return self.pps
        since = self.traffic.packets.time_ns[self.rows] - int(self.traffic.packets.time_ns.min())
        # By the seconds that have any: a capture's clock may have jumped by years.
        inverse = np.unique(since // 1_000_000_000, return_inverse=True)[1]
        return max(self.pps, float(np.bincount(inverse, self.weight).max()))

    @cached_property
    def source_counts(self) -> NDArray[np.intp]:
        """Sampled packets of each distinct source."""
        counts = np.bincount(self.traffic.source_id[self.rows])
        return counts[counts > 0]

    @property
    def sources(self) -> int:
        """Distinct sources seen."""
        return len(self.source_counts)

    @property
    def senders(self) -> str:
        """How many sources, in words; a sample that meets new ones all the time holds not all of them.

        The part of the sampled packets whose source was met once is that of the sources not met (Good 1953).
        """
        partly = self.packets > 1.05 * self.n and self.singles > _UNMET
        return f"{'at least ' * partly}{self.sources:,} source{'' if self.sources == 1 else 's'}"

    @cached_property
    def singles(self) -> float:
        """Part of the sampled packets whose source was seen once."""
        return float((self.source_counts == 1).sum()) / self.n if self.n else 0.0

    @cached_property
    def flow_singles(self) -> float:
        """Part of the sampled packets whose flow was seen once."""
        if not self.n:
            return 0.0
        counts = np.bincount(self.traffic.flow_id[self.rows])
        return float((counts == 1).sum()) / self.n

    @cached_property
    def pps_per_source(self) -> float:
        """Mean packets a second of a source; too low when sampling misses sources."""
        return self.pps / self.sources if self.sources else 0.0

    @cached_property
    def mean_length(self) -> float:
        """Mean IP length in bytes."""
        lengths = self.traffic.packets.ip_length[self.rows]
        return float((lengths * self.weight).sum() / self.packets) if self.packets else 0.0

    def top(self, column: str) -> Top:
        """Return the commonest value of a packet column."""
        if column not in self._tops:
            self._tops[column] = top_of(getattr(self.traffic.packets, column)[self.rows], self.weight)
        return self._tops[column]

    @cached_property
    def _tops(self) -> dict[str, Top]:
        return {}

    @cached_property
    def destinations(self) -> Top:
        """The commonest destination (as key) and how many there are."""
        return top_of(self.traffic.dest_key[self.rows], self.weight)

    @cached_property
    def target(self) -> str:
        """The commonest destination as text."""
        at = self.rows[np.argmax(self.traffic.dest_key[self.rows] == np.uint64(self.destinations.value))]
        packets = self.traffic.packets
        return format_address(int(packets.family[at]), int(packets.dst_hi[at]), int(packets.dst_lo[at]))

    @cached_property
    def sample(self) -> Rows:
        """At most `feature_rows` of the rows, evenly taken, for statistics of contents."""
        return self.spread(self.feature_rows)

    def spread(self, limit: int) -> Rows:
        """Take at most `limit` of the rows, evenly."""
        if self.n <= limit:
            return self.rows
        return self.rows[np.linspace(0, self.n - 1, limit).astype(np.intp)]

    @cached_property
    def head(self) -> tuple[U8, I64]:
        """The first 64 payload bytes of the sample rows, and how many of each are real."""
        return payload(self.traffic.packets, self.sample, 64)

    @cached_property
    def payload_variety(self) -> float:
        """Distinct payload beginnings (32 bytes) a sampled packet: near 0 constant, near 1 all differ."""
        matrix, length = self.head
        full = matrix[length > 0]
        if len(full) == 0:
            return 0.0
        return len(np.unique(distinct_texts(full[:, :32]))) / len(full)

    @cached_property
    def payload_entropy(self) -> float:
        """Bits a byte over all captured payload bytes of the sample: 8 is random, 0 constant."""
        matrix, length = self.head
        real = matrix[np.arange(64) < length[:, None]]
        if len(real) == 0:
            return 0.0
        p = np.bincount(real, minlength=256) / len(real)
        p = p[p > 0]
        return float(-(p * np.log2(p)).sum())

    @cached_property
    def zero_bytes(self) -> float:
        """Part of the captured payload bytes that are zero."""
        matrix, length = self.head
        real = int(length.sum())
        return float((matrix[np.arange(64) < length[:, None]] == 0).sum()) / real if real else 0.0

    @cached_property
    def notes(self) -> dict[str, Any]:
        """What parsers found in these rows, so that two rules don't parse them twice."""
        return {}

    def constants(self, columns: tuple[str, ...], floor: float = 0.95) -> dict[str, Top]:
        """Return those columns where one value dominates: many floods have one odd constant."""
        found = {name: self.top(name) for name in columns}
        return {name: top for name, top in found.items() if top.share >= floor}


def header_words(traffic: Traffic, rows: Rows) -> U8:
    """Return the TCP data offset of each row (5: no options); 0 where it was not captured."""
    packets = traffic.packets
    start = transport_start(packets, rows)
    good = (start >= 0) & (start + 13 <= packets.captured[rows])
    words = np.zeros(len(rows), np.uint8)
    words[good] = packets.data[rows[good], start[good] + 12] >> 4
    return words


def top_of(values: NDArray[Any], weight: F64) -> Top:
    """Return the commonest value by weight."""
    if len(values) == 0:
        return Top(0, 0.0, 0)
    distinct, sums = weighted_top(values, weight)
    total = float(sums.sum())
    return Top(int(distinct[0]), float(sums[0]) / total if total else 0.0, len(distinct))
