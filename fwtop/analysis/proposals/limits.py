"""What a rate limit drops: of sources that keep their rate, and of normal traffic replayed over time.

A bucket of net/netfilter/xt_hashlimit.c starts with `burst` tokens, gains `per_second` and never holds more
than `burst`; a packet (or byte) without a token is dropped. A table that is full (htable-max) drops every
packet of a prefix that it doesn't hold yet (hotdrop): a flood from more sources than that turns the limit
against all new clients. Compiled limits keep an LRU table instead: beyond its size they forget sources, which
then start again with a full bucket, and limit too little.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.proposals.matching import limit_groups, match_rows
from fwtop.analysis.window.traffic import Rows, Traffic
from fwtop.model.rule import Match, RateLimit, Rule
from fwtop.model.traffic.packets import F64, I64, PacketBatch
from fwtop.rules.kinds import of
from fwtop.rules.xtables import HASHLIMIT_EXPIRE_MS, HASHLIMIT_MAX
from fwtop.xdp.maps import BUCKETS

_STEP_NS = 100_000_000
_COARSE = 0.25  # of the burst per sample: too coarse to see bursts
_SEEN = 3  # samples from which the rate of a source is known
# Expired entries are collected once a second (gc-interval).
REMEMBERED_SECONDS = HASHLIMIT_EXPIRE_MS / 1000 + 1.0
_HEADROOM = 0.5  # of the table: the estimate is a lower bound, and attacks grow
_FEWEST = 30  # samples from which anything can be extrapolated
_SHORTER = ((28, 60), (24, 56), (20, 52), (16, 48), (12, 40), (8, 32))  # prefix lengths of IPv4 and IPv6


def sustained(limit: RateLimit, packets: PacketBatch, rows: Rows, weight: F64, seconds: float) -> F64:
    """Return the dropped share (0 to 1) of each row's bucket at its present rate.

    `weight` is the number of packets per row. The burst is exhausted. The first sample of a bucket only
    shows that the source exists; its rate is estimated from the others, so one seen once has none.
    """
    size = _sizes(limit, packets, rows)
    _, inverse = np.unique(limit_groups(limit, packets, rows), return_inverse=True)
    total, samples = np.bincount(inverse, weight * size), np.bincount(inverse)
    own = np.bincount(inverse, size)
    return _above(limit, (total - (total - own) / np.maximum(samples, 1)) / max(seconds, 1e-6))[inverse]


def _sizes(limit: RateLimit, packets: PacketBatch, rows: Rows) -> F64:
    """Return the size of each row in what the limit counts: bytes or packets."""
    return packets.ip_length[rows].astype(np.float64) if limit.in_bytes else np.ones(len(rows))


def _above(limit: RateLimit, rate: F64) -> F64:
    """Return the share (0 to 1) of constant rates that is above a limit."""
    return np.asarray(1.0 - limit.per_second / np.maximum(rate, limit.per_second), np.float64)


def replayed(limit: RateLimit, packets: PacketBatch, rows: Rows, amount: F64, seconds: float) -> F64:
    """Return the dropped share of each row when normal traffic is replayed.

    `amount` is the number of packets per row in `seconds` of normal traffic. If that is too coarse
    to see bursts, mean rates are used.
    """
    amount = amount * _sizes(limit, packets, rows)
    dropped = np.zeros(len(rows))
    if len(rows) == 0:
        return dropped
    _, inverse = np.unique(limit_groups(limit, packets, rows), return_inverse=True)
    if float(np.median(amount)) > _COARSE * limit.burst:
        return _above(limit, np.bincount(inverse, amount) / max(seconds, 1e-6))[inverse]
    # Only a bucket that received more than its burst can drop anything
    heavy = np.flatnonzero((np.bincount(inverse, amount) > limit.burst)[inverse])
    order = heavy[np.lexsort((packets.time_ns[rows[heavy]], inverse[heavy]))]
    for group in np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1):
        if len(group):
            dropped[group] = _bucket(limit, packets.time_ns[rows[group]] // _STEP_NS, amount[group])
    return dropped


def _bucket(limit: RateLimit, step: np.ndarray[tuple[int], np.dtype[np.int64]], amount: F64) -> F64:
    """Simulate one bucket; `step` counts tenths of a second, ascending."""
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
    """Return the packets per second that 99 % of normal sources stay below while active."""
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


def remembered(
    match: Match, limit: RateLimit, traffic: Traffic, seconds: float = REMEMBERED_SECONDS
) -> float:
    """Estimate the entries of the fuller table (IPv4 or IPv6) that a limit needs for `seconds`."""
    hit = match_rows(match, traffic.packets)
    most = 0.0
    for family, bits in ((4, limit.prefix_v4), (6, limit.prefix_v6)):
        rows = np.flatnonzero(hit & (traffic.packets.family == family))
        _, counts = np.unique(limit_groups(limit, traffic.packets, rows), return_counts=True)
        packets = float(traffic.weight[rows].sum()) * seconds / max(traffic.seconds, 1e-6)
        there_are = float("inf") if limit.by_dport else 2.0**bits
        most = max(most, min(there_are, extrapolated(counts, packets)))
    return most


def extrapolated(counts: I64, packets: float) -> float:
    """Estimate the distinct keys among `packets` packets; `counts` has the samples of each observed key.

    Chao et al., Rarefaction and extrapolation with Hill numbers, Ecological Monographs 84 (2014), equation 9:
    unseen keys by Chao1, discovered at the rate that the share of singletons gives (Good-Turing).
    """
    samples, seen = float(counts.sum()), float(len(counts))
    more = packets - samples
    once, twice = float((counts == 1).sum()), float((counts == 2).sum())
    if samples < _FEWEST or more <= 0 or once == 0:
        return min(seen, max(packets, 0.0))
    unseen = (samples - 1) / samples * (once**2 / (2 * twice) if twice else once * (once - 1) / 2)
    if unseen <= 0:
        return seen
    missed = math.pow(max(0.0, 1.0 - once / (samples * unseen + once)), more)
    return seen + unseen * (1.0 - missed)


def fills_table(rule: Rule, traffic: Traffic) -> bool:
    """Check whether the rule is a hashlimit whose table would fill up with this traffic."""
    most = of(rule.kind).table
    if not most or rule.limit is None:
        return False
    return remembered(rule.match, rule.limit, traffic) > _HEADROOM * most


def evicts_buckets(rule: Rule, traffic: Traffic) -> bool:
    """Check whether a compiled limit would evict buckets (LRU) before they refill."""
    if not of(rule.kind).is_compiled or rule.limit is None:
        return False
    full_again = max(1.0, rule.limit.burst / rule.limit.per_second)
    return remembered(rule.match, rule.limit, traffic, full_again) > BUCKETS


def full_table_warning(rule: Rule, traffic: Traffic) -> str | None:
    """Warn that the table of the limit is too small, and name an alternative; None if it isn't."""
    limit, evicts = rule.limit, evicts_buckets(rule, traffic)
    if limit is None or not (evicts or fills_table(rule, traffic)):
        return None
    shorter = _that_fits(rule, limit, traffic)
    way = f"--per {shorter}" if shorter is not None else ""
    if evicts:
        return (
            f"too many sources: the limit keeps {BUCKETS:,} prefixes at a time, and lets more than its rate "
            f"pass from sources that it has evicted{way and f'; use {way}'}"
        )
    return (
        f"too many sources: the table of {HASHLIMIT_MAX:,} prefixes would fill up, and a full table drops "
        f"every new client; use --via xdp{way and f', or {way}'}"
    )


def _that_fits(rule: Rule, limit: RateLimit, traffic: Traffic) -> int | None:
    for four, six in _SHORTER:
        shorter = replace(limit, prefix_v4=min(four, limit.prefix_v4), prefix_v6=min(six, limit.prefix_v6))
        tried = replace(rule, limit=shorter)
        if shorter != limit and not (fills_table(tried, traffic) or evicts_buckets(tried, traffic)):
            return six if rule.match.families == (6,) else four
    return None
