"""What each core and each receive queue does, between two looks: /proc/softirqs, softnet_stat, ethtool -S.

A flow is received by one queue and one core, so a flood of few flows fills one core while the others idle.
Sources: proc(5), net/core/net-procfs.c (softnet_seq_show).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fwtop.kernel.procfs import parse_cores, read_text
from fwtop.model.traffic.snapshot import Core, Queue

_MOST = 64  # cores and queues, those with most packets
_COUNTERS = 3  # of a line of softnet_stat: processed, dropped, squeezed
_INDEX = 12  # its core (Linux 5.10)


class ReceiveMeter:
    """Remembers the last counters."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._before = _per_core()
        self._queues_at = 0.0
        self._queues: dict[tuple[str, int], tuple[int | None, int]] = {}

    def cores(self) -> tuple[Core, ...]:
        """Return the cores since the last call, the one that receives most first."""
        now, counted = time.monotonic(), _per_core()
        seconds, before = max(now - self._at, 1e-3), self._before
        self._at, self._before = now, counted
        found = []
        for number in counted.keys() & before.keys():
            grown = [have - had for have, had in zip(counted[number], before[number], strict=True)]
            softirq, spent, *counts = grown
            rates = (max(count, 0) / seconds for count in counts)
            found.append(Core(number, max(softirq, 0) / spent if spent > 0 else 0.0, *rates))
        return tuple(sorted(found, key=lambda core: (-core.pps, core.number))[:_MOST])

    def queues(self, counted: Iterable[tuple[str, int, int | None, int]]) -> tuple[Queue, ...]:
        """Return the queues since the last call; given are interface, queue, packets, and drops."""
        now, table = time.monotonic(), {(name, queue): (got, lost) for name, queue, got, lost in counted}
        seconds, before = max(now - self._queues_at, 1e-3), self._queues
        self._queues_at, self._queues = now, table
        found = []
        for (name, queue), (packets, drops) in table.items():
            had, lost = before.get((name, queue), (packets, drops))
            pps = None if packets is None or had is None else max(packets - had, 0) / seconds
            found.append(Queue(name, queue, pps, max(drops - lost, 0) / seconds))
        return tuple(found[:_MOST])


def _per_core() -> dict[int, tuple[int, ...]]:
    """Return by core: jiffies in softirq, of all; packets, dropped, squeezed; runs of NET_RX."""
    ticks = parse_cores(read_text("/proc/stat"))
    table = read_text("/proc/net/softnet_stat")
    lines = [[int(word, 16) for word in line.split()] for line in table.splitlines()]
    softnet = {
        line[_INDEX] if len(line) > _INDEX else place: line[:_COUNTERS]
        for place, line in enumerate(lines)
        if len(line) > _COUNTERS
    }
    heads, *rows = read_text("/proc/softirqs").splitlines() or [""]
    cores = [int(word[3:]) for word in heads.split() if word[3:].isdigit()]
    counts = next((row.split()[1:] for row in rows if row.lstrip().startswith("NET_RX:")), [])
    runs = dict(zip(cores, map(int, counts), strict=False))
    return {
        number: (*pair, *softnet[number], runs.get(number, 0))
        for number, pair in ticks.items()
        if number in softnet
    }
