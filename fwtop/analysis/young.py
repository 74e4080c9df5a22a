"""A baseline that is too short to compare with: what most of its moments agree on, the rest is replaced."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.memory import CLASSES, MEMORY_SECONDS, Baseline, classes
from fwtop.model.traffic.packets import F64, I64, Mask

_MOMENT_SECONDS = 0.5  # a tick; longer windows count as several


class Moments(Struct):
    """The packets per second of each class, of each moment."""

    rates: F64 = field(default_factory=lambda: np.zeros((0, len(CLASSES))))
    last_ns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))  # of a moment's packets; -1: not here
    outliers: Mask = field(default_factory=lambda: np.zeros((0, len(CLASSES)), np.bool_))

    @staticmethod
    def of(baseline: Baseline) -> Moments:
        """Return moments with the means and deviations of a short baseline of an earlier session."""
        mean, square = (
            np.array([known.get(name, 0.0) for name in CLASSES]) for known in (baseline.mean, baseline.square)
        )
        sign = np.resize([1.0, -1.0], 2 * round(baseline.seconds / _MOMENT_SECONDS / 2))
        rates = mean + sign[:, None] * np.sqrt(np.maximum(square - mean * mean, 0.0))
        return Moments(rates, np.full(len(rates), -1), np.zeros(rates.shape, np.bool_))

    def add(self, rates: F64, seconds: float, last_ns: int) -> None:
        """Add a tick."""
        count, most = max(1, round(seconds / _MOMENT_SECONDS)), round(MEMORY_SECONDS / _MOMENT_SECONDS)
        self.rates = np.concatenate([self.rates, np.repeat(rates[None], count, axis=0)])[-most:]
        self.last_ns = np.append(self.last_ns, np.full(count, last_ns))[-most:]

    def agreed(self, factor: float, floor: float) -> tuple[F64, F64]:
        """Return mean and mean square without moments of more than so many times the median."""
        self.outliers = self.rates > np.maximum(factor * np.median(self.rates, axis=0), floor)
        used = np.where(self.outliers, 0.0, self.rates)
        number = np.maximum((~self.outliers).sum(axis=0), 1)
        return used.sum(axis=0) / number, (used * used).sum(axis=0) / number

    def before(self, last_ns: int) -> Moments:
        """Return the moments up to a time."""
        known = self.last_ns <= last_ns
        return Moments(self.rates[known], self.last_ns[known], self.outliers[known])

    def drop_outliers(self, baseline: Baseline) -> None:
        """Remove from the reservoir the packets of moments and classes that the others don't agree with."""
        if not self.outliers.any():
            return
        outliers, times = with_alike(self.outliers), baseline.rows.time_ns
        moment = np.minimum(np.searchsorted(self.last_ns, times), len(outliers) - 1)
        baseline.rows = baseline.rows.select(~((times >= 0) & outliers[moment, classes(baseline.rows)]))


def with_alike(marked: Mask) -> Mask:
    """Mark lone ACKs and others together: one that is alone in a tick has company in the reservoir."""
    acks = [CLASSES.index("tcp.ack"), CLASSES.index("tcp.lone")]
    marked = marked.copy()
    marked[..., acks] = marked[..., acks].any(axis=-1, keepdims=True)
    return marked
