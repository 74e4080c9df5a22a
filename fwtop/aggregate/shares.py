"""Shares with their 95 % intervals, from sums of weighted samples and exact totals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fwtop.aggregate.tally import BYTES, SAMPLES, VARIANCE, WEIGHT, Tally
from fwtop.aggregate.winners import in_crowd, posterior
from fwtop.model.packets import F64
from fwtop.model.snapshot import Share

_Z = 1.959964  # 95 %
_FEW = 50.0  # samples
_SCANT = 10.0


@dataclass(frozen=True, slots=True)
class Scale:
    """What sums are measured against: the sums of all samples, and the exact counts of the interval."""

    total: F64  # (SUMS,)
    packets: float
    bytes: float
    seconds: float

    def shares(self, sums: F64) -> list[Share]:
        """Return a Share for each column of `sums` (SUMS, n): parts that were not picked by their size."""
        return self._written(sums, *intervals(sums, self.total))

    def top(self, counted: Tally, count: int) -> list[tuple[int, Share]]:
        """Return the `count` largest rows of a tally with their shares, most packets first."""
        rows = counted.largest(count)
        found = list(zip(rows.tolist(), self._top_shares(counted, rows), strict=True))
        found.sort(key=lambda item: -item[1].packets)
        return found

    def _top_shares(self, counted: Tally, rows: NDArray[np.intp]) -> list[Share]:
        """Return a Share for each of the rows that were picked as the largest of a tally (winners.py)."""
        sums = counted.sums[:, rows]
        part, low, high = intervals(sums, self.total)
        # Of many samples one more or less is within the interval
        evident = np.where(sums[SAMPLES] < _SCANT, _ratio(counted.evident()[rows], sums[WEIGHT]), 1.0)
        part, low = part * evident, low * evident
        if len(rows) and self.total[VARIANCE] > 0:
            alike = _is_alike(counted.sums, self.total)
            mean = float(self.total[WEIGHT] / self.total[SAMPLES])
            counts, own = self._effective(counted.sums[SAMPLES, alike]), self._effective(sums[SAMPLES])
            crowd = np.flatnonzero(alike[rows] & in_crowd(counts, own))
            if len(crowd):
                # Packets a sample: the row's own, drawn to the mean while there are few
                packets = sums[SAMPLES] * (sums[WEIGHT] + _FEW * mean) / (sums[SAMPLES] + _FEW)
                each = packets / own / self.total[WEIGHT]
                found = posterior(counts, own[crowd], 1.0 / mean)
                for column, value in zip((part, low, high), found, strict=True):
                    column[crowd] = np.minimum(value * each[crowd], 1.0)
        return self._written(sums, part, low, high)

    def _effective(self, samples: F64) -> F64:
        """Return how many samples of equal weight would tell as much.

        With c the weights' coefficient of variation k samples tell as much as k / (1 + c²) of equal weight
        (Kish, "Survey Sampling", 1965), as far as a row goes by its own weights and not by the mean of all.
        And part of the population is seen, so that counts vary less than Poisson's.
        """
        mean = float(self.total[WEIGHT] / self.total[SAMPLES])
        squares = float(self.total[VARIANCE] + self.total[WEIGHT])
        spread = max(0.0, squares / float(self.total[WEIGHT]) / mean - 1.0)
        of_its_own = samples / (samples + _FEW)
        return np.asarray(samples / (1.0 + of_its_own**2 * spread) / (1.0 - 1.0 / mean), np.float64)

    def _written(self, sums: F64, part: F64, low: F64, high: F64) -> list[Share]:
        if self.packets > 0:  # what was seen is certain
            certain = np.minimum(sums[SAMPLES] / self.packets, 1.0)
            part, low, high = np.maximum(part, certain), np.maximum(low, certain), np.maximum(high, certain)
        packets = np.rint(part * self.packets)
        size = np.rint(_ratio(sums[BYTES], sums[WEIGHT]) * part * self.total[WEIGHT] * self.byte_scale)
        return [
            Share(int(n), int(b), n / self.seconds if self.seconds > 0 else n, p, lo, hi)
            for n, b, p, lo, hi in zip(
                packets.tolist(), size.tolist(), part.tolist(), low.tolist(), high.tolist(), strict=True
            )
        ]

    @property
    def byte_scale(self) -> float:
        """Return exact bytes a sampled byte."""
        return self.bytes / float(self.total[BYTES]) if self.total[BYTES] > 0 else 0.0


def _is_alike(sums: F64, total: F64) -> NDArray[np.bool_]:
    """Tell the rows whose samples are a fair choice of all, as far as their weights tell.

    The counts of such rows can be compared. Others were there when N was another one: clients before the
    attack, a burst within it.
    """
    mean = float(total[WEIGHT] / total[SAMPLES])
    variance = max(0.0, float((total[VARIANCE] + total[WEIGHT]) / total[SAMPLES]) - mean * mean)
    own = _ratio(sums[WEIGHT], sums[SAMPLES])
    room = 3.0 * np.sqrt(_ratio(np.full(own.shape, variance), sums[SAMPLES])) + 0.05 * mean
    return np.asarray((sums[VARIANCE] > 0) & (np.abs(own - mean) <= room))


def intervals(sums: F64, total: F64) -> tuple[F64, F64, F64]:
    """Return share, lower and upper 95 % limit of each column.

    Wilson's score interval (1927) on the effective number of samples. With A the part and B the rest,
    the ratio's variance is ((1−p)² V_A + p² V_B) / T², that is p (1−p) / n with
    n = T / ((1−p) V_A/A + p V_B/B): finite weights and the finite population are in V (digest.py).
    Where every packet was seen the interval has no width.

    The terms of z² say what may have been missed: about two samples. For the upper limit these weigh as much
    as samples do on the whole: of a client that was seen whole before the attack, and by chance not at all
    since N rose, its own samples' weight says nothing.
    """
    weight, variance = sums[WEIGHT], sums[VARIANCE]
    part = np.clip(_ratio(weight, total[WEIGHT]), 0.0, 1.0)
    overall = _ratio(total[VARIANCE], total[WEIGHT])
    rest = np.maximum(total[WEIGHT] - weight, 0.0)
    inside = np.where(weight > 0, _ratio(variance, weight), overall)
    outside = np.where(rest > 0, _ratio(np.maximum(total[VARIANCE] - variance, 0.0), rest), overall)
    # z² / n of Wilson's formula, and the same for what was missed
    own = _Z * _Z * _ratio((1 - part) * inside + part * outside, total[WEIGHT])
    missed = _Z * _Z * _ratio((1 - part) * np.maximum(inside, overall) + part * outside, total[WEIGHT])
    spread = own * part * (1 - part)
    low = (part + own / 2 - np.sqrt(spread + own * own / 4)) / (1 + own)
    high = (part + missed / 2 + np.sqrt(spread + missed * missed / 4)) / (1 + missed)
    low = np.where(own < 1e-12, part, np.clip(np.minimum(low, part), 0.0, 1.0))
    high = np.where(missed < 1e-12, part, np.clip(np.maximum(high, part), 0.0, 1.0))
    return part, low, high


def _ratio(part: F64 | np.float64, whole: F64 | np.float64) -> F64:
    """Divide, 0 where there is nothing to divide by."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)
