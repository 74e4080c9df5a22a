"""What a rate limit drops: of sources that go on as they do, and of normal traffic replayed over time.

A bucket of net/netfilter/xt_hashlimit.c begins with `burst` tokens, gains `per_second` and never holds more
than `burst`; a packet (or byte) without a token is dropped.
"""

from __future__ import annotations

import numpy as np

from fwtop.advise.matching import limit_groups
from fwtop.advise.traffic import Rows
from fwtop.model.packets import F64, PacketBatch
from fwtop.model.rule import RateLimit

_STEP_NS = 100_000_000
_COARSE = 0.25  # of the burst in one sample: too coarse to tell bursts from chance
_SEEN = 3  # samples from which a source's rate is known at all


def sustained(limit: RateLimit, packets: PacketBatch, rows: Rows, weight: F64, seconds: float) -> F64:
    """Return the part (0 to 1) of each row's bucket that is dropped when it goes on like that.

    `weight` is how many packets each row stands for. The burst is used up by then. One of a bucket's samples
    says only that there is such a source, the others how fast it is: of a source seen once, no rate is known.
    """
    size = packets.ip_length[rows].astype(np.float64) if limit.in_bytes else np.ones(len(rows))
    _, inverse = np.unique(limit_groups(limit, packets, rows), return_inverse=True)
    total, samples = np.bincount(inverse, weight * size), np.bincount(inverse)
    own = np.bincount(inverse, size)
    rate = (total - (total - own) / np.maximum(samples, 1)) / max(seconds, 1e-6)
    part = 1.0 - limit.per_second / np.maximum(rate, limit.per_second)
    return np.asarray(part[inverse], np.float64)


def replayed(limit: RateLimit, packets: PacketBatch, rows: Rows, amount: F64, seconds: float) -> F64:
    """Return the part of each row that is dropped when normal traffic comes as it came.

    `amount` is how many packets each row stands for in `seconds` of normal traffic. Where that is too coarse
    to see bursts, mean rates decide.
    """
    size = packets.ip_length[rows].astype(np.float64) if limit.in_bytes else np.ones(len(rows))
    amount = amount * size
    dropped = np.zeros(len(rows))
    if len(rows) == 0:
        return dropped
    _, inverse = np.unique(limit_groups(limit, packets, rows), return_inverse=True)
    if float(np.median(amount)) > _COARSE * limit.burst:
        rate = np.bincount(inverse, amount) / max(seconds, 1e-6)
        part = 1.0 - limit.per_second / np.maximum(rate, limit.per_second)
        return np.asarray(part[inverse], np.float64)
    # Only a bucket that got more than its burst at all can lose anything
    heavy = np.flatnonzero((np.bincount(inverse, amount) > limit.burst)[inverse])
    order = heavy[np.lexsort((packets.time_ns[rows[heavy]], inverse[heavy]))]
    for group in np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1):
        if len(group):
            dropped[group] = _bucket(limit, packets.time_ns[rows[group]] // _STEP_NS, amount[group])
    return dropped


def _bucket(limit: RateLimit, step: np.ndarray[tuple[int], np.dtype[np.int64]], amount: F64) -> F64:
    """Run one bucket through time; `step` counts tenths of a second, ascending."""
    steps, first, inverse = np.unique(step, return_index=True, return_inverse=True)
    wanted = np.add.reduceat(amount, first)
    tokens, before = float(limit.burst), int(steps[0])
    part = np.zeros(len(steps))
    gain = limit.per_second * _STEP_NS * 1e-9
    for i, (now, want) in enumerate(zip(steps.tolist(), wanted.tolist(), strict=True)):
        tokens = min(float(limit.burst), tokens + (now - before) * gain)
        part[i] = max(0.0, 1.0 - tokens / want) if want > 0 else 0.0
        tokens, before = max(0.0, tokens - want), now
    return np.asarray(part[inverse], np.float64)


def usual_rate(limit: RateLimit, packets: PacketBatch, amount: F64, seconds: float) -> float:
    """Return the packets a second that 99 of 100 normal sources stay below while they are there."""
    rows = np.arange(len(packets))
    if len(rows) == 0:
        return 0.0
    _, inverse = np.unique(limit_groups(limit, packets, rows), return_inverse=True)
    groups = int(inverse.max()) + 1
    time = packets.time_ns.astype(np.float64) * 1e-9
    first, last = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(first, inverse, time)
    np.maximum.at(last, inverse, time)
    known = np.bincount(inverse) >= _SEEN
    span = np.where(known, np.clip(last - first, 1.0, max(seconds, 1.0)), max(seconds, 1.0))
    return float(np.quantile(np.bincount(inverse, amount) / span, 0.99))
