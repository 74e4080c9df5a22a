"""Sums by key that can be joined, and shares of the whole with 95 % intervals: every table is made so."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.model.traffic.packets import F64, U64
from fwtop.model.traffic.snapshot import Share

# Rows of `KeyedSums.sums`
SAMPLES = 0
WEIGHT = 1  # packets that the samples stand for
VARIANCE = 2  # estimated variance of WEIGHT; 0 where every packet was seen
BYTES = 3
XDP_DROPPED = 4  # part of WEIGHT that XDP dropped
DROPPED = 5  # packets that samples of the drop hook stand for; these are in no other row
SUMS = 6
_SHORT = 2_048  # keys that numpy sorts by their places as fast

# Salted, so that no sender can make two keys collide
_SALT = np.frombuffer(os.urandom(8), np.uint64)[0]
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # splitmix64


def ascending(keys: U64) -> tuple[NDArray[np.intp], U64]:
    """Return an order that sorts keys, and the sorted keys.

    Numbers are sorted in less than half of the time in which numpy sorts their places, so each is packed
    with its place: behind it, or instead of its lowest bits, which in keys that are hashes decide nothing.
    """
    if len(keys) < _SHORT:
        order = np.argsort(keys)
        return order, keys.take(order)
    bits = np.uint64(len(keys).bit_length())
    lowest = (np.uint64(1) << bits) - np.uint64(1)
    short = not keys.max(initial=0) >> (np.uint64(64) - bits)
    packed = np.sort((keys << bits if short else keys & ~lowest) | np.arange(len(keys), dtype=np.uint64))
    order = (packed & lowest).view(np.intp)
    found = packed >> bits if short else keys.take(order)
    if not short and bool((found[1:] < found[:-1]).any()):
        order = np.argsort(keys)
        found = keys.take(order)
    return order, found


class KeyedSums(Struct, frozen=True):
    """n distinct keys in ascending order, their sums (SUMS, n), and columns that a key determines."""

    keys: U64
    sums: F64
    tags: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        """Return n."""
        return len(self.keys)

    @staticmethod
    def of(keys: U64, sums: F64, tags: dict[str, NDArray[Any]]) -> KeyedSums:
        """Group rows by key; tags are those of any row with the key."""
        if len(keys) == 0:
            return KeyedSums(keys, sums, tags)
        if bool((keys == keys[0]).all()):  # a protocol, a target, a constant payload: no sort needed
            return KeyedSums(
                keys[:1], sums.sum(axis=1, keepdims=True), {name: tag[:1] for name, tag in tags.items()}
            )
        order, keys = ascending(keys)
        first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        if len(first) == len(keys):
            whole = {name: tag.take(order, axis=0) for name, tag in tags.items()}
            return KeyedSums(keys, sums.take(order, axis=1), whole)
        chosen, grouped = order[first], np.zeros((SUMS, len(first)))
        for row in np.flatnonzero(sums.any(axis=1)):  # skip sums that are all zero
            if len(keys) >= _SHORT and bool((sums[row] == sums[row, 0]).all()):  # no need to add them
                grouped[row] = np.diff(first, append=len(keys)) * sums[row, 0]
            else:
                grouped[row] = np.add.reduceat(sums[row].take(order), first)
        return KeyedSums(keys[first], grouped, {name: tag.take(chosen, axis=0) for name, tag in tags.items()})

    @staticmethod
    def join(parts: list[KeyedSums]) -> KeyedSums:
        """Add one or more sums of the same kind."""
        filled = [part for part in parts if len(part)]
        if len(filled) < 2:
            return filled[0] if filled else parts[0]
        return KeyedSums.of(
            np.concatenate([part.keys for part in filled]),
            np.concatenate([part.sums for part in filled], axis=1),
            {name: np.concatenate([part.tags[name] for part in filled]) for name in filled[0].tags},
        )

    def rows(self, rows: NDArray[Any]) -> KeyedSums:
        """Select keys by a mask, or by indices in ascending order."""
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows  # `take` is faster than indexing
        return KeyedSums(
            self.keys.take(places),
            self.sums.take(places, axis=1),
            {name: tag.take(places, axis=0) for name, tag in self.tags.items()},
        )

    def evident(self) -> F64:
        """Return the ranking weight of each key: its weight less the excess of one heavy sample.

        N differs from sample to sample: it jumps when an attack begins. Keys with one of the few samples of
        great weight would come before all that are known from many. What is that one sample worth? Sizes of
        traffic sources follow Zipf's law, a density of about λ^-2 for the expected number of samples λ; with
        k samples the posterior is then the gamma distribution with mean k - 1 (conjugate to Poisson: Gelman
        et al., "Bayesian Data Analysis", section 2.6), so that one sample says that a source is there and
        not that it is great. So a key gives up one sample's weight as far as that is above the mean of all;
        where all samples weigh the same nothing changes. A sample's weight is Σw²/Σw, from VARIANCE.
        """
        weight, samples = self.sums[WEIGHT], float(self.sums[SAMPLES].sum())
        if not samples or not self.sums[VARIANCE].any():
            return np.asarray(weight, np.float64)
        heavy = np.divide(self.sums[VARIANCE], weight, out=np.zeros(len(weight)), where=weight > 0) + 1.0
        excess = np.maximum(heavy - weight.sum() / samples, 0.0)
        least = np.minimum(weight, self.sums[SAMPLES])
        return np.asarray(np.maximum(weight - excess, least), np.float64)

    def largest(self, count: int) -> NDArray[np.intp]:
        """Return the indices of the `count` keys of greatest ranking weight, in descending order."""
        weight = self.evident()
        if count < len(weight):
            chosen = np.argpartition(weight, len(weight) - count)[len(weight) - count :]
        else:
            chosen = np.arange(len(weight))
        # Equal weights keep the order of their keys, which keeps rows stable on the screen
        return chosen[np.lexsort((self.keys[chosen], -weight[chosen]))]

    def cut(self, count: int) -> KeyedSums:
        """Keep the `count` keys of greatest ranking weight."""
        return self if len(self) <= count else self.rows(np.sort(self.largest(count)))


def mixed(values: U64, seed: U64 | int = 0) -> U64:
    """Hash 64-bit values (splitmix64's finaliser), chained to an earlier hash by `seed`."""
    hashed = (values ^ _SALT) + np.asarray(seed, np.uint64) * _SECOND
    hashed = (hashed ^ (hashed >> np.uint64(30))) * _FIRST
    hashed = (hashed ^ (hashed >> np.uint64(27))) * _SECOND
    return np.asarray(hashed ^ (hashed >> np.uint64(31)))


_STEP = 0.06  # of the grid of rates, in logarithms
_ROUNDS = 15  # of EM: more of them overfit the prior
_BINS = 160
_TAIL = 0.025
_CROWD = 30  # rows of similar count among which chance decides the ranking


def in_crowd(counts: F64, chosen: F64) -> NDArray[np.bool_]:
    """Mark the chosen counts that have many similar ones, within two standard deviations."""
    ordered = np.sort(counts)
    spread = 2 * np.sqrt(chosen)
    like = np.searchsorted(ordered, chosen + spread, "right") - np.searchsorted(ordered, chosen - spread)
    return np.asarray(like >= _CROWD)


def posterior(counts: F64, chosen: F64, smallest: float) -> tuple[F64, F64, F64]:
    """Return mean, lower and upper 95 % limit of the expected counts of `chosen` rows.

    `counts` has the effective number of samples (> 0) of every observed row, `chosen` a subset of
    them; `smallest` is the lowest possible rate of a source: one packet.
    """
    values, number = _binned(counts)
    first = np.log(min(smallest, 1.0) * 0.8)
    last = np.log(float(counts.max()) + 4 * np.sqrt(float(counts.max())) + 4)
    rate = np.exp(np.arange(first, last + _STEP, _STEP))
    fit = _likelihood(values, rate)
    prior = np.full(len(rate), 1.0 / len(rate))
    for _ in range(_ROUNDS):
        joint = fit * prior
        joint /= joint.sum(axis=1, keepdims=True)
        prior = number @ joint / number.sum()
    unique, place = np.unique(chosen, return_inverse=True)
    after = _likelihood(unique, rate) * prior
    after /= after.sum(axis=1, keepdims=True)
    running = np.cumsum(after, axis=1)
    half = _STEP / 2  # a grid point represents the rates around it, half a step to either side
    edge = np.log(rate) + half
    low = np.array([np.interp(_TAIL, row, edge) for row in running])
    high = np.array([np.interp(1 - _TAIL, row, edge) for row in running])
    # If all counts are about equal, one grid point takes all the mass
    return (after @ rate)[place], np.exp(low - half)[place], np.exp(high + half)[place]


def _binned(counts: F64) -> tuple[F64, F64]:
    """Return distinct counts (near ones merged) and the number of rows of each."""
    values, number = np.unique(counts, return_counts=True)
    if len(values) > _BINS:
        edges = np.exp(np.linspace(np.log(values[0]), np.log(values[-1]), _BINS))
        place = np.searchsorted(edges, values, side="left")
        total = np.bincount(place, number)
        mean = np.bincount(place, number * values) / np.maximum(total, 1)
        return mean[total > 0], total[total > 0].astype(np.float64)
    return values, number.astype(np.float64)


def _likelihood(counts: F64, rate: F64) -> F64:
    """Return the zero-truncated Poisson likelihood of each count at each rate, each row scaled to 1."""
    log = counts[:, None] * np.log(rate) - rate - np.log(-np.expm1(-rate))
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


_Z = 1.959964  # 95 %
_FEW = 50.0  # samples
_SCANT = 10.0
_LEAST_UNSEEN = 0.01  # of the packets: where more samples came than were counted, fewer than none


class Scale(Struct, frozen=True):
    """The reference of all shares: the sums of all samples and the exact counts of the interval."""

    total: F64  # (SUMS,)
    packets: float
    bytes: float
    seconds: float

    def shares(self, sums: F64) -> list[Share]:
        """Return a Share for each column of `sums` (SUMS, n), for keys that were not chosen by size."""
        return self._written(sums, *intervals(sums, self.total))

    def top(self, counted: KeyedSums, count: int) -> list[tuple[int, Share]]:
        """Return the `count` largest keys with their shares, in descending order of packets."""
        rows = counted.largest(count)
        found = list(zip(rows.tolist(), self._top_shares(counted, rows), strict=True))
        found.sort(key=lambda item: -item[1].packets)
        return found

    def _top_shares(self, counted: KeyedSums, rows: NDArray[np.intp]) -> list[Share]:
        """Return a Share for each row chosen as one of the largest, corrected for selection bias."""
        sums = counted.sums[:, rows]
        part, low, high = intervals(sums, self.total)
        # With many samples, one more or less is within the interval
        evident = np.where(sums[SAMPLES] < _SCANT, _ratio(counted.evident()[rows], sums[WEIGHT]), 1.0)
        part, low = part * evident, low * evident
        if len(rows) and self.total[VARIANCE] > 0:
            alike = _is_alike(counted.sums, self.total)
            mean = float(self.total[WEIGHT] / self.total[SAMPLES])
            counts, own = self._effective(counted.sums[SAMPLES, alike]), self._effective(sums[SAMPLES])
            crowd = np.flatnonzero(alike[rows] & in_crowd(counts, own))
            if len(crowd):
                # Packets per sample: the mean of the row, shrunk to the overall mean while samples are few
                packets = sums[SAMPLES] * (sums[WEIGHT] + _FEW * mean) / (sums[SAMPLES] + _FEW)
                each = packets / own / self.total[WEIGHT]
                found = posterior(counts, own[crowd], 1.0 / mean)
                for column, value in zip((part, low, high), found, strict=True):
                    column[crowd] = np.minimum(value * each[crowd], 1.0)
        return self._written(sums, part, low, high)

    def _effective(self, samples: F64) -> F64:
        """Return the effective number of samples: how many of equal weight carry the same information.

        With c the weights' coefficient of variation k samples tell as much as k / (1 + c²) of equal weight
        (Kish, "Survey Sampling", 1965), as far as a row goes by its own weights and not by the mean of all.
        And part of the population is seen, so that counts vary less than Poisson's.
        """
        mean = float(self.total[WEIGHT] / self.total[SAMPLES])
        squares = float(self.total[VARIANCE] + self.total[WEIGHT])
        spread = max(0.0, squares / float(self.total[WEIGHT]) / mean - 1.0)
        of_its_own = samples / (samples + _FEW)
        unseen = max(1.0 - 1.0 / mean, _LEAST_UNSEEN)
        return np.asarray(samples / (1.0 + of_its_own**2 * spread) / unseen, np.float64)

    def _written(self, sums: F64, part: F64, low: F64, high: F64) -> list[Share]:
        if self.packets > 0:  # sampled packets are certain
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
        """Exact bytes per sampled byte."""
        return self.bytes / float(self.total[BYTES]) if self.total[BYTES] > 0 else 0.0


def _is_alike(sums: F64, total: F64) -> NDArray[np.bool_]:
    """Mark the rows whose sample weights are representative of all samples.

    Only the counts of such rows are comparable. Others were sampled at another rate: clients before the
    attack, or a burst.
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
    n = T / ((1−p) V_A/A + p V_B/B): finite weights and the finite population are in V.
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
    own = _ratio((1 - part) * inside + part * outside, total[WEIGHT])
    missed = _ratio((1 - part) * np.maximum(inside, overall) + part * outside, total[WEIGHT])
    low, high = wilson_interval(part, own, missed)
    return part, low, high


def wilson_interval(
    share: F64 | np.float64, inverse_n: F64 | np.float64, inverse_n_missed: F64 | None = None
) -> tuple[F64, F64]:
    """Return the 95 % limits of shares by Wilson's score interval (1927), which contains the share.

    `inverse_n` is 1 / n, the effective number of samples; 0 where everything was counted. The upper limit's
    allowance for what no sample saw takes `inverse_n_missed` if given.
    """
    own = _Z * _Z * inverse_n
    missed = own if inverse_n_missed is None else _Z * _Z * inverse_n_missed
    spread = own * share * (1 - share)
    low = (share + own / 2 - np.sqrt(spread + own * own / 4)) / (1 + own)
    high = (share + missed / 2 + np.sqrt(spread + missed * missed / 4)) / (1 + missed)
    low = np.where(own < 1e-12, share, np.clip(np.minimum(low, share), 0.0, 1.0))
    high = np.where(missed < 1e-12, share, np.clip(np.maximum(high, share), 0.0, 1.0))
    return low, high


def _ratio(part: F64 | np.float64, whole: F64 | np.float64) -> F64:
    """Divide, 0 where there is nothing to divide by."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)
