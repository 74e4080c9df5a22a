"""Fill level of the connection-tracking table, and how well this machine's TCP services still serve.

Sources: proc(5); net/ipv4/proc.c. `PassiveOpens` counts completed handshakes (SYN cookies included),
`TCPDelivered` our acknowledged segments: neither grows by packets with a spoofed source.
"""

from __future__ import annotations

import math
import time
from collections import deque

from msgspec import Struct

from fwtop.kernel.procfs import parse_conntrack_stats, parse_paired, read_int, read_text
from fwtop.model.traffic.counters import ConntrackSample, TcpService

_SYSCTL = "/proc/sys/net/netfilter/nf_conntrack_"
_STATS = "/proc/net/stat/nf_conntrack"
_HORIZON_SECONDS = 3.0  # time constant of the average growth, to smooth bursts
_FAR_SECONDS = 86_400.0  # a table that takes longer than a day to fill isn't filling


class ConntrackMeter:
    """Samples the connection-tracking table, interval by interval."""

    def __init__(self) -> None:
        self._count = read_int(_SYSCTL + "count")
        self._stats = parse_conntrack_stats(read_text(_STATS))
        self._growth = 0.0

    def sample(self, seconds: float, new_connections: int | None) -> ConntrackSample | None:
        """Return the sample since the last call, or None where connection tracking is off.

        `new_connections` comes from the BPF program at the end of the hooks. If it can't count them (None),
        the table's growth is used, which misses connections that ended within the interval.
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
            growth_per_s=self._growth,
        )
        self._count, self._stats = count, stats
        return sample


def seconds_to_full(free: int, growth_per_s: float) -> float | None:
    """Return when `free` entries will be used up at this growth; None if not within a day."""
    if free <= 0:
        return 0.0
    if growth_per_s <= 0 or free / growth_per_s > _FAR_SECONDS:
        return None
    return free / growth_per_s


_WINDOW_SECONDS = 3.0


class _Reading(Struct, frozen=True):
    at: float  # monotonic seconds
    established: int
    handshakes: int
    acknowledged: int


class TcpServiceMeter:
    """Rates of the TCP counters over the last seconds."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()

    def sample(self) -> TcpService | None:
        """Return the rates; None before the second call, or if the kernel lacks the counters."""
        reading = parse_service(read_text("/proc/net/snmp"), read_text("/proc/net/netstat"), time.monotonic())
        if reading is None:
            return None
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and readings[1].at <= reading.at - _WINDOW_SECONDS:
            readings.popleft()
        seconds = reading.at - readings[0].at
        if seconds <= 0:
            return None
        return TcpService(
            reading.established,
            max(reading.handshakes - readings[0].handshakes, 0) / seconds,
            max(reading.acknowledged - readings[0].acknowledged, 0) / seconds,
        )


def parse_service(snmp: str, netstat: str, at: float) -> _Reading | None:
    """Parse /proc/net/snmp and /proc/net/netstat; None if a counter is missing."""
    tcp = parse_paired(snmp).get("Tcp", {})
    extended = parse_paired(netstat).get("TcpExt", {})
    if "CurrEstab" not in tcp or "TCPDelivered" not in extended:  # before Linux 4.18
        return None
    return _Reading(at, tcp["CurrEstab"], tcp.get("PassiveOpens", 0), extended["TCPDelivered"])
