"""Whether counts of clients before and since a rule differ by more than chance explains.

Counts are as rare as their spread from interval to interval says: bursts, and packets that stand for others
that were not sampled, count for less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_SURE = 4.0  # standard deviations
_CHANCE = 1 / 30_000  # as rare as these
_HALF = 0.5  # of the usual: who gets less has fallen silent
_SMALL = 0.05  # a chance that tells something
_TESTED = 64  # clients

Counts = list[tuple[float, float]]  # (seconds, count) of each interval


def rate(counts: Counts) -> float:
    """Return the mean a second."""
    return sum(count for _, count in counts) / max(_seconds(counts), 1e-9)


def surely_lost(before: Counts, since: Counts) -> float:
    """Return the least share of a rate that is lost, 0 to 1, unless chance deceives in one of 30,000 tests.

    A variance-stabilised test of two Poisson rates: Gu, Ng, Tang, Schucany, Biometrical Journal 50, 2008.
    """
    time, span = _seconds(before), _seconds(since)
    if rate(before) <= 0 or span <= 0:
        return 0.0
    scale = _spread(before)
    had, have = (sum(count for _, count in part) / scale + 0.375 for part in (before, since))
    square = _SURE**2
    if 4 * had <= square:
        return 0.0
    inside = 64 * had * have - 4 * (4 * had - square) * (4 * have - square)
    root = (8 * math.sqrt(had * have) + math.sqrt(max(inside, 0.0))) / (2 * (4 * had - square))
    return max(1.0 - root**2 * time / span, 0.0)


def silent(usual: Mapping[int, Counts], since: Mapping[int, Counts]) -> tuple[int, ...]:
    """Return the clients that get less than half of the usual; nobody if chance may explain their silence.

    One client's counts are few, and chance could explain each alone, but not all of them together.
    """
    tested = sorted(usual)[:_TESTED]
    if not tested or _combined([_chance(usual[who], since[who]) for who in tested]) > _CHANCE:
        return ()
    return tuple(who for who in tested if rate(since[who]) < _HALF * rate(usual[who]))


def _combined(chances: Sequence[float]) -> float:
    """Return how likely it is that the small ones among so many independent tests are as small as these.

    The truncated product of Zaykin, Zhivotovsky, Westfall and Weir, Genetic Epidemiology 22 (2002): clients
    that get on tell nothing of others that don't.
    """
    small = [one for one in chances if one <= _SMALL]
    count, product = len(chances), math.fsum(map(math.log, small))
    found = 0.0
    for k in range(1, count + 1):
        over = k * math.log(_SMALL) - product
        least = 1.0 if over <= 0 else math.exp(-over) * sum(over**s / math.factorial(s) for s in range(k))
        found += math.comb(count, k) * (1 - _SMALL) ** (count - k) * _SMALL**k * least
    return found if small else 1.0


def _chance(usual: Counts, since: Counts) -> float:
    """Return how likely it is that somebody so usual gets no more than this."""
    scale = _spread(usual)
    expected = rate(usual) * _seconds(since) / scale
    got = int(sum(count for _, count in since) / scale)
    if got >= expected:
        return 1.0
    logs = (k * math.log(expected) - expected - math.lgamma(k + 1) for k in range(got + 1))
    return max(min(sum(map(math.exp, logs)), 1.0), 1e-9)


def _spread(counts: Counts) -> float:
    """Return by how much intervals vary more than those of a Poisson process, at least 1."""
    mean = rate(counts)
    if mean <= 0:
        return 1.0
    varied = sum((count - mean * seconds) ** 2 / (mean * seconds) for seconds, count in counts if seconds)
    return max(varied / max(len(counts) - 1, 1), 1.0)


def _seconds(counts: Counts) -> float:
    return sum(seconds for seconds, _ in counts)
