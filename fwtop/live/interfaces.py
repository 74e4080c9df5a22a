"""The watched interfaces as they go down, are renamed, removed and recreated; what cores and queues receive.

A recreated interface has another number: the observers are attached to it instead, which the console may do
itself (see fwtop.observe.duty_cycle). Interfaces that are created on top of a watched one (a VLAN, a bond)
are included, so that their drops are counted.

A flow is received by one queue and one core, so a flood of few flows fills one core while the others idle:
/proc/softirqs, softnet_stat, ethtool -S (proc(5), softnet_seq_show in net/core/net-procfs.c).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from fwtop.kernel.links import Link, LinkStats, Received, list_links, lowest_links, watched_indexes
from fwtop.kernel.procfs import parse_ticks, read_text
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Core, Queue
from fwtop.observe.messages import Interface


class _Chosen(Struct):
    name: str
    index: int
    ethernet: bool
    present: bool = True


class Interfaces:
    """The watched interfaces and their counters.

    `move(old, new)` attaches the observers to another interface number and raises OSError; it is None where
    only root can attach. `watch(numbers)` sets the numbers to count, and returns whether all fit.
    """

    def __init__(
        self,
        chosen: Iterable[Interface],
        *,
        move: Callable[[int, int], None] | None,
        watch: Callable[[list[int]], bool],
    ) -> None:
        self._chosen = [_Chosen(item.name, item.index, item.ethernet) for item in chosen]
        self._move = move
        self._watch = watch
        self._seen: list[tuple[int, str, bool, int, int]] = []
        self._lowest: frozenset[int] = frozenset()
        self._stats: dict[int, LinkStats] = {}
        self._received = Received()
        self.notes: tuple[str, ...] = ()

    def read(self) -> dict[int, LinkStats]:
        """Return the counters of the lowest interfaces, by number; the previous ones if netlink fails."""
        try:
            links = list_links()
        except OSError:  # the next call catches up
            return self._stats
        seen = [(link.index, link.name, link.up, link.lower, link.master) for link in links]
        if seen != self._seen:  # following them costs more than reading
            self._seen = seen
            self._follow(links)
        self._stats = {link.index: link.stats for link in links if link.index in self._lowest}
        return self._stats

    def received(self) -> tuple[int, int]:
        """Return packets and bytes that the lowest interfaces of the last `read` received until now.

        Those of that time if one of them is gone.
        """
        try:
            return self._received.read(self._lowest)
        except OSError:  # the next `read` finds out what became of it
            links = self._stats.values()
            return sum(link.packets for link in links), sum(link.bytes for link in links)

    def close(self) -> None:
        """Close what is open."""
        self._received.close()

    def _follow(self, links: list[Link]) -> None:
        notes = [note for chosen in self._chosen if (note := self._find(chosen, links))]
        by_index = {link.index: link for link in links}
        present = [by_index[chosen.index] for chosen in self._chosen if chosen.present]
        self._lowest = frozenset(link.index for link in lowest_links(links, present))
        if not self._watch(watched_indexes(links, present)):
            notes.append("too many interfaces on top of the watched ones: restart fwtop to watch them all")
        self.notes = tuple(notes)

    def _find(self, chosen: _Chosen, links: list[Link]) -> str:
        """Update an interface and return a note about it, if there is anything to say."""
        name = safe_text(chosen.name)
        link = next((link for link in links if link.index == chosen.index), None)
        if link is None or not chosen.present:
            link = next((link for link in links if link.name == chosen.name), None)
            failed = self._replace(chosen, link)
            if failed or link is None:
                back = "; it will be watched again when it is back" if self._move else ""
                return failed or f"{name} is gone{back}"
        if link.name != chosen.name:
            return f"{name} is now called {safe_text(link.name)}"
        return "" if link.up else f"{name} is down"

    def _replace(self, chosen: _Chosen, link: Link | None) -> str:
        """Attach to the interface that replaced one that is gone; return a note if that failed."""
        again = f"{safe_text(chosen.name)} was recreated"
        chosen.present = False
        if self._move is None:
            return f"{again}, and this kernel lets only root attach: restart fwtop" if link else ""
        if link is not None and link.ethernet != chosen.ethernet:
            return f"{again} as another kind of interface: restart fwtop to watch it"
        try:
            # Moving to its own number detaches from an interface that left this namespace
            self._move(chosen.index, link.index if link else chosen.index)
        except (OSError, FwtopError) as error:
            return f"{again} and can't be watched ({safe_text(error)}): restart fwtop"
        if link is not None:
            chosen.index, chosen.present = link.index, True
        return ""


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
    ticks = parse_ticks(read_text("/proc/stat"))
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
        number: (had.softirq, had.total, *softnet[number], runs.get(number, 0))
        for number, had in ticks.items()
        if number is not None and number in softnet
    }
