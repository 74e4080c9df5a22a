"""Sums by key that can be joined; every table is counted in this form."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.model.traffic.packets import F64, U64

# Rows of `KeyedSums.sums`
SAMPLES = 0
WEIGHT = 1  # packets that the samples stand for
VARIANCE = 2  # estimated variance of WEIGHT; 0 where every packet was seen
BYTES = 3
XDP_DROPPED = 4  # part of WEIGHT that XDP dropped
DROPPED = 5  # packets that samples of the drop hook stand for; these are in no other row
SUMS = 6

# Salted, so that no sender can make two keys collide
_SALT = np.frombuffer(os.urandom(8), np.uint64)[0]
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # splitmix64


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
        order = np.argsort(keys)
        keys = keys.take(order)
        first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        chosen = order if len(first) == len(keys) else order[first]
        grouped = np.zeros((SUMS, len(first)))
        for row in np.flatnonzero(sums.any(axis=1)):  # skip sums that are all zero
            part = sums[row].take(order)
            grouped[row] = part if len(first) == len(keys) else np.add.reduceat(part, first)
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
