"""Intervals of rows that were picked because they came out on top.

Who looks at the first rows of a long table looks at those that chance favoured: of 1,000 equal sources
the 50 with most samples all seem too big, and in a forged flood every address that was sampled at all. An
interval that knows nothing of the other rows then misses the truth in most rows. The remedy is empirical
Bayes: all rows together tell how big sources are (the distribution of true rates, by EM on Poisson counts,
stopped early so that it stays smooth), and a row's interval is that of its posterior, which being picked
doesn't change. Efron, "Tweedie's formula and selection bias", JASA 2011; Efron, "Empirical Bayes
deconvolution estimates", Biometrika 2016.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fwtop.model.packets import F64

_STEP = 0.06  # of the grid of rates, in logarithms
_ROUNDS = 15  # of EM: more of them, and the prior believes the luck of the draw
_BINS = 160
_TAIL = 0.025
_CROWD = 30  # so many rows of about the same count, and chance decides which of them are on top


def in_crowd(counts: F64, chosen: F64) -> NDArray[np.bool_]:
    """Tell which of the chosen counts have many like them: within two standard deviations."""
    ordered = np.sort(counts)
    spread = 2 * np.sqrt(chosen)
    like = np.searchsorted(ordered, chosen + spread, "right") - np.searchsorted(ordered, chosen - spread)
    return np.asarray(like >= _CROWD)


def posterior(counts: F64, chosen: F64, smallest: float) -> tuple[F64, F64, F64]:
    """Return mean, lower and upper 95 % limit of the expected counts of `chosen` rows.

    `counts` are those of all rows that were seen (effective numbers of samples, > 0), `chosen` some of
    them; `smallest` is the least rate that a source can have: one packet.
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
    half = _STEP / 2  # a grid point stands for the rates around it: the sum up to it ends that much behind it
    edge = np.log(rate) + half
    low = np.array([np.interp(_TAIL, row, edge) for row in running])
    high = np.array([np.interp(1 - _TAIL, row, edge) for row in running])
    # Where all are about equal one point takes all: nothing is known within it
    return (after @ rate)[place], np.exp(low - half)[place], np.exp(high + half)[place]


def _binned(counts: F64) -> tuple[F64, F64]:
    """Return distinct values of the counts, near ones put together, and how many rows have each."""
    values, number = np.unique(counts, return_counts=True)
    if len(values) > _BINS:
        edges = np.exp(np.linspace(np.log(values[0]), np.log(values[-1]), _BINS))
        place = np.searchsorted(edges, values, side="left")
        total = np.bincount(place, number)
        mean = np.bincount(place, number * values) / np.maximum(total, 1)
        return mean[total > 0], total[total > 0].astype(np.float64)
    return values, number.astype(np.float64)


def _likelihood(counts: F64, rate: F64) -> F64:
    """Poisson probability of each count at each rate, given that the source was seen; rows scaled."""
    log = counts[:, None] * np.log(rate) - rate - np.log(-np.expm1(-rate))
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))
