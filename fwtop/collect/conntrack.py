"""How full the connection-tracking table is, how fast it fills, and when it will be full."""

from __future__ import annotations

import math

from fwtop.collect.procfs import parse_conntrack_stats, read_int, read_text
from fwtop.model.counters import ConntrackSample

_SYSCTL = "/proc/sys/net/netfilter/nf_conntrack_"
_STATS = "/proc/net/stat/nf_conntrack"
_HORIZON_SECONDS = 3.0  # growth is averaged over about this long: bursts come and go
_FAR_SECONDS = 86_400.0  # what takes longer than a day to fill isn't filling


class ConntrackMeter:
    """Remembers the last reading; `sample` gives the interval since then."""

    def __init__(self) -> None:
        self._count = read_int(_SYSCTL + "count")
        self._stats = parse_conntrack_stats(read_text(_STATS))
        self._growth = 0.0

    def sample(self, seconds: float, new_connections: int | None) -> ConntrackSample | None:
        """Return the interval's sample, or None where the kernel tracks nothing.

        `new_connections` were counted by the program at the end of the hooks; where it can't count them
        the table's growth stands in, which misses those that ended within the interval.
        """
        limit = read_int(_SYSCTL + "max")
        if not limit:
            return None
        count, stats = read_int(_SYSCTL + "count"), parse_conntrack_stats(read_text(_STATS))
        growth = (count - self._count) / seconds if seconds > 0 else 0.0
        self._growth += (growth - self._growth) * (1 - math.exp(-seconds / _HORIZON_SECONDS))
        new = new_connections if new_connections is not None else max(0, count - self._count)
        sample = ConntrackSample(
            count=count,
            max=limit,
            new_per_s=new / seconds if seconds > 0 else 0.0,
            insert_failed=max(0, stats.insert_failed - self._stats.insert_failed),
            drop=max(0, stats.drop - self._stats.drop),
            early_drop=max(0, stats.early_drop - self._stats.early_drop),
            seconds_to_full=seconds_to_full(limit - count, self._growth),
        )
        self._count, self._stats = count, stats
        return sample


def seconds_to_full(free: int, growth_per_s: float) -> float | None:
    """Return when `free` entries will be used up at this growth; None: not in a day."""
    if free <= 0:
        return 0.0
    if growth_per_s <= 0 or free / growth_per_s > _FAR_SECONDS:
        return None
    return free / growth_per_s
