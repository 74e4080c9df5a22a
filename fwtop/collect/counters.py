"""Exact counts of each interval from the kernel's own counters: the ledger's ground."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.cell import CLASSES, CONTROL_WORDS, HOOKS, NON_IP, cell_bytes, cell_dtype
from fwtop.collect.conntrack import ConntrackMeter
from fwtop.collect.fragments import FragmentMeter
from fwtop.collect.links import LinkStats, list_links
from fwtop.collect.procfs import parse_softirq, read_text
from fwtop.collect.reasons import NOT_A_LOSS, NOT_IP, place, place_of_function, reached_tc
from fwtop.collect.symbols import Symbols
from fwtop.model.counters import ConntrackSample, Counters, DropCount
from fwtop.model.text import safe_text

Count = NDArray[np.int64]  # (…, 2): packets, bytes
PACKETS, BYTES = 0, 1
_ARMED, _OPEN = HOOKS, HOOKS + 1  # words of struct fwtop_control behind one_in
_NETFILTER = "NETFILTER_DROP"
_NOT_SPECIFIED = "NOT_SPECIFIED"
_LEAST_SEEN = 50  # packets in windows, below which they say nothing about the rest


@dataclass(frozen=True, slots=True)
class Totals:
    """What the programs counted since they were attached, or in an interval."""

    arrived: Count  # (classes,)
    accepted: Count  # (2,): input, forward
    drops: Count  # (2, reasons): inbound, outbound
    reassembled: int
    new_connections: int
    lost: int
    sites: dict[int, int]  # where packets were dropped for no stated reason: address → packets
    per_cpu: NDArray[np.int64]  # (cpus, 3): arrived, dropped, accepted packets

    def since(self, before: Totals) -> Totals:
        """Return the interval between two readings."""
        return Totals(
            self.arrived - before.arrived,
            self.accepted - before.accepted,
            self.drops - before.drops,
            self.reassembled - before.reassembled,
            self.new_connections - before.new_connections,
            self.lost - before.lost,
            {at: n - before.sites.get(at, 0) for at, n in self.sites.items() if n > before.sites.get(at, 0)},
            self.per_cpu - before.per_cpu,
        )

    def scaled(self, factor: float) -> Totals:
        """Return the whole of which this was counted in windows of time; losses are losses, not samples."""
        return Totals(
            np.rint(self.arrived * factor).astype(np.int64),
            np.rint(self.accepted * factor).astype(np.int64),
            np.rint(self.drops * factor).astype(np.int64),
            round(self.reassembled * factor),
            round(self.new_connections * factor),
            self.lost,
            {at: round(count * factor) for at, count in self.sites.items()},
            np.rint(self.per_cpu * factor).astype(np.int64),
        )

    @property
    def arrived_packets(self) -> int:
        """Packets of all classes."""
        return int(self.arrived[:, PACKETS].sum())


class Cells:
    """The kernel's cells and the samplers' control, mapped into this process."""

    def __init__(self, cells_fd: int, control_fd: int, *, cpus: int, reasons: int) -> None:
        self._cells_map = mmap.mmap(cells_fd, _pages(cpus * cell_bytes(reasons)))
        self._control_map = mmap.mmap(control_fd, _pages(4 * CONTROL_WORDS))
        self._cells = np.frombuffer(self._cells_map, cell_dtype(reasons), cpus)
        self._control = np.frombuffer(self._control_map, np.uint32, CONTROL_WORDS)

    def totals(self) -> Totals:
        """Add the CPUs up."""
        cells = self._cells.copy()
        arrived, accepted, drops = (_counts(cells[name]) for name in ("arrived", "accepted", "drops"))
        sites: dict[int, int] = {}
        named = cells["sites"][cells["sites"]["packets"] > 0]
        for address, packets in zip(named["address"].tolist(), named["packets"].tolist(), strict=True):
            sites[address] = sites.get(address, 0) + packets
        return Totals(
            arrived=arrived.sum(axis=0),
            accepted=accepted.sum(axis=0),
            drops=drops.sum(axis=0),
            reassembled=int(cells["reassembled"].sum()),
            new_connections=int(cells["new_connections"].sum()),
            lost=int(cells["lost"].sum()),
            sites=sites,
            per_cpu=np.stack(
                [
                    arrived[..., PACKETS].sum(axis=1),
                    drops[..., PACKETS].sum(axis=(1, 2)),
                    accepted[..., PACKETS].sum(axis=1),
                ],
                axis=1,
            ),
        )

    def set_one_in(self, hook: int, n: int) -> None:
        """Sample 1 in n from now on; a long countdown of before is cut, so that a calm is seen at once."""
        self._control[hook] = n
        longer = self._cells["drawn"][:, hook] > 2 * n
        if longer.any():
            self._cells["left"][longer, hook] = np.minimum(self._cells["left"][longer, hook], n)
            self._cells["drawn"][longer, hook] = n

    def arm(self) -> None:
        """Let the next arriving packet open: from it on, all hooks count."""
        self._control[_ARMED] = 1

    def shut(self) -> None:
        """Stop all counting at once."""
        self._control[_ARMED] = 0
        self._control[_OPEN] = 0

    def close(self) -> None:
        """Unmap; the descriptors stay the caller's."""
        del self._cells, self._control
        self._cells_map.close()
        self._control_map.close()


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _counts(pairs: NDArray[Any]) -> Count:
    """Return packets and bytes as a last axis of 2."""
    return np.stack([pairs["packets"], pairs["bytes"]], axis=-1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval's counters, what they were made of, and how much more than was counted it is."""

    counters: Counters
    counted: Totals
    factor: float


class CounterReader:
    """Turns running sums into the Counters of each interval.

    `reasons` maps a number to its name; `indexes` are the interfaces whose drivers' drops count.
    """

    def __init__(
        self,
        cells: Cells,
        reasons: dict[int, str],
        indexes: list[int],
        *,
        counts_new: bool,
        symbols: Symbols,
    ) -> None:
        self._cells = cells
        self._reasons = reasons
        self._indexes = frozenset(indexes)
        self._counts_new = counts_new
        self._symbols = symbols
        self._conntrack = ConntrackMeter()
        self._totals = cells.totals()
        self._fragments = FragmentMeter()
        self._seen: Totals | None = None  # by the last windows
        self._links = self._link_stats()
        self._softirq = parse_softirq(read_text("/proc/stat"))

    def read(self, seconds: float, *, one_in: float, windows: bool) -> Interval:
        """Return everything exact about the interval since the last call.

        With `windows` the programs counted only at times: what they counted is scaled up to what the
        interfaces received.
        """
        now, before = self._cells.totals(), self._totals
        links, links_before = self._link_stats(), self._links
        self._totals, self._links = now, links
        counted = now.since(before)
        factor = 1.0
        if windows:
            counted, factor = self._whole(counted, _grown(links, links_before, "packets"))
        conntrack = self._conntrack.sample(seconds, counted.new_connections if self._counts_new else None)
        drops = self._kernel_drops(counted, conntrack)
        drops += driver_drops(links, links_before, drops)
        counters = self._counters(
            counted, drops, conntrack, seconds=seconds, one_in=one_in * factor, watched=1.0 / factor
        )
        before_delivery = sum(drop.packets for drop in drops if drop.before_delivery and reached_tc(drop))
        missing = counters.arrived_packets - before_delivery - (counters.accepted_packets or 0)
        waiting = self._fragments.sample(counted.reassembled, missing, drops)
        return Interval(replace(counters, drops=(*counters.drops, *waiting)), counted, factor)

    def _whole(self, counted: Totals, arrived: int) -> tuple[Totals, float]:
        """Scale what windows saw up to all that arrived; without a window since, go by the last one."""
        if counted.arrived_packets >= _LEAST_SEEN or self._seen is None:
            self._seen = counted
        whole = self._seen.scaled(arrived / max(self._seen.arrived_packets, 1))
        factor = arrived / counted.arrived_packets if counted.arrived_packets else 1.0
        return replace(whole, lost=counted.lost), max(1.0, factor)

    def _counters(
        self,
        counted: Totals,
        drops: list[DropCount],
        conntrack: ConntrackSample | None,
        *,
        seconds: float,
        one_in: float,
        watched: float,
    ) -> Counters:
        not_ip = counted.arrived[NON_IP]  # ARP and the like are delivered without passing the input hook
        not_ip_dropped = sum(drop.packets for drop in drops if drop.reason in NOT_IP)
        not_ip_delivered = max(0, int(not_ip[PACKETS]) - not_ip_dropped)
        accepted = counted.accepted.sum(axis=0)
        return Counters(
            seconds=seconds,
            arrived_packets=counted.arrived_packets,
            arrived_bytes=int(counted.arrived[:, BYTES].sum()),
            accepted_packets=int(accepted[PACKETS]) + counted.reassembled + not_ip_delivered,
            accepted_bytes=int(accepted[BYTES]) + (int(not_ip[BYTES]) if not_ip_delivered else 0),
            protocols={
                name: (int(row[PACKETS]), int(row[BYTES]))
                for name, row in zip(CLASSES, counted.arrived, strict=True)
                if row[PACKETS]
            },
            drops=tuple(drops),
            conntrack=conntrack,
            records_lost=counted.lost,
            one_in=one_in,
            softirq_share=self._softirq_share(),
            watched=watched,
        )

    def _kernel_drops(self, counted: Totals, conntrack: ConntrackSample | None) -> list[DropCount]:
        found: list[DropCount] = []
        counts = counted.drops
        for outbound, number in zip(*np.nonzero(counts[..., PACKETS]), strict=True):
            reason = safe_text(self._reasons.get(int(number), f"reason {number}"))
            if reason in NOT_A_LOSS:
                continue
            layer, before_delivery = place(reason, outbound=bool(outbound))
            packets, size = counts[outbound, number].tolist()
            drop = DropCount(layer, reason, packets, size, before_delivery=before_delivery)
            if reason == _NETFILTER:
                found += split_conntrack(drop, conntrack)
            elif reason == _NOT_SPECIFIED and not outbound:
                found += split_sites(drop, counted.sites, self._symbols.names(list(counted.sites)))
            else:
                found.append(drop)
        return found

    def _link_stats(self) -> dict[int, LinkStats]:
        try:
            return {link.index: link.stats for link in list_links() if link.index in self._indexes}
        except OSError:
            return {}

    def _softirq_share(self) -> float | None:
        now, before = parse_softirq(read_text("/proc/stat")), self._softirq
        self._softirq = now
        spent = now[1] - before[1]
        return (now[0] - before[0]) / spent if spent > 0 else None


def _grown(now: dict[int, LinkStats], before: dict[int, LinkStats], field: str) -> int:
    """Add up by how much a counter of all interfaces grew; one that began anew counts from nothing."""
    return sum(
        max(0, getattr(stats, field) - getattr(before[index], field))
        for index, stats in now.items()
        if index in before
    )


def driver_drops(
    now: dict[int, LinkStats], before: dict[int, LinkStats], drops: list[DropCount]
) -> list[DropCount]:
    """Return what the drivers dropped before the stack, less what the stack counted there as well."""
    totals = {name: _grown(now, before, name) for name in ("missed", "fifo", "errors", "dropped")}
    twice = sum(drop.packets for drop in drops if drop.reason in ("CPU_BACKLOG", "UNHANDLED_PROTO"))
    totals["dropped"] = max(0, totals["dropped"] - twice)
    totals["errors"] = max(0, totals["errors"] - totals["fifo"] - totals["missed"])
    if totals["missed"]:  # drivers that count both mean the same packets
        totals["fifo"] = 0
    return [DropCount("nic", f"RX_{name.upper()}", packets) for name, packets in totals.items() if packets]


def split_conntrack(drop: DropCount, conntrack: ConntrackSample | None) -> list[DropCount]:
    """Take the packets that connection tracking refused out of those dropped by netfilter.

    Both come with the same reason; conntrack's own statistics tell them apart.
    """
    if conntrack is None:
        return [drop]
    parts: list[DropCount] = []
    rest = drop.packets
    for name, packets, before in (
        ("TABLE_FULL", conntrack.drop, True),
        ("INSERT_FAILED", conntrack.insert_failed, False),  # at confirmation: behind every rule
    ):
        taken = min(rest, packets)
        if taken:
            share = drop.bytes * taken // drop.packets
            parts.append(DropCount("conntrack", name, taken, share, before_delivery=before))
            rest -= taken
    if rest:
        left = drop.bytes - sum(part.bytes for part in parts)
        parts.append(DropCount(drop.layer, drop.reason, rest, left, before_delivery=drop.before_delivery))
    return parts


def split_sites(drop: DropCount, sites: dict[int, int], names: dict[int, str]) -> list[DropCount]:
    """Tell drops without a reason by the function that dropped, as far as that is known."""
    parts: dict[str, int] = {}
    rest = drop.packets
    for address, packets in sites.items():
        taken = min(rest, packets)
        rest -= taken
        parts[names[address]] = parts.get(names[address], 0) + taken
    parts[""] = parts.get("", 0) + rest
    found = []
    for name, packets in parts.items():
        layer, before = place_of_function(name, outbound=False)
        if packets and layer:
            reason = f"{drop.reason} ({name})" if name else drop.reason
            size = drop.bytes * packets // drop.packets
            found.append(DropCount(layer, reason, packets, size, before_delivery=before))
    return found
