"""Exact counts of each interval from the kernel's own counters: the ledger's ground."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.cell import CLASSES, HOOKS, NON_IP, cell_bytes, cell_dtype
from fwtop.collect.conntrack import ConntrackMeter
from fwtop.collect.links import LinkStats, list_links
from fwtop.collect.procfs import parse_softirq, read_text
from fwtop.collect.reasons import NOT_A_LOSS, NOT_IP, place
from fwtop.model.counters import ConntrackSample, Counters, DropCount
from fwtop.model.text import safe_text

_NETFILTER = "NETFILTER_DROP"
_NOT_SPECIFIED = "NOT_SPECIFIED"


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all CPUs since the programs were attached, as the arrays of one cell."""

    arrived: NDArray[Any]  # (classes,) packets, bytes
    accepted: NDArray[Any]  # (2,): input, forward
    reassembled: int
    lost: int
    new_connections: int
    drops: NDArray[Any]  # (2, reasons): inbound, outbound
    sites: dict[int, int]  # address → packets; 0: the rest


class Cells:
    """The kernel's cells and the samplers' control, mapped into this process."""

    def __init__(self, cells_fd: int, control_fd: int, *, cpus: int, reasons: int) -> None:
        self._cells_map = mmap.mmap(cells_fd, _pages(cpus * cell_bytes(reasons)))
        self._control_map = mmap.mmap(control_fd, _pages(4 * HOOKS))
        self._cells = np.frombuffer(self._cells_map, cell_dtype(reasons), cpus)
        self._control = np.frombuffer(self._control_map, np.uint32, HOOKS)

    def totals(self) -> Totals:
        """Add the CPUs up."""
        cells = self._cells.copy()
        sites: dict[int, int] = {}
        for row in cells["sites"]:
            for address, packets in zip(row["address"].tolist(), row["packets"].tolist(), strict=True):
                if packets:
                    sites[address] = sites.get(address, 0) + packets
        return Totals(
            arrived=_sum(cells["arrived"]),
            accepted=_sum(cells["accepted"]),
            reassembled=int(cells["reassembled"].sum()),
            lost=int(cells["lost"].sum()),
            new_connections=int(cells["new_connections"].sum()),
            drops=_sum(cells["drops"]),
            sites=sites,
        )

    def set_one_in(self, hook: int, n: int) -> None:
        """Sample 1 in n from now on; a long countdown of before is cut, so that a calm is seen at once."""
        self._control[hook] = n
        longer = self._cells["drawn"][:, hook] > 2 * n
        if longer.any():
            self._cells["left"][longer, hook] = np.minimum(self._cells["left"][longer, hook], n)
            self._cells["drawn"][longer, hook] = n

    def close(self) -> None:
        """Unmap; the descriptors stay the caller's."""
        del self._cells, self._control
        self._cells_map.close()
        self._control_map.close()


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _sum(counts: NDArray[Any]) -> NDArray[Any]:
    total: NDArray[Any] = np.zeros(counts.shape[1:], counts.dtype)
    for field in ("packets", "bytes"):
        total[field] = counts[field].sum(axis=0)
    return total


def _minus(now: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    difference: NDArray[Any] = np.zeros_like(now)
    for field in ("packets", "bytes"):
        difference[field] = now[field] - before[field]
    return difference


class CounterReader:
    """Turns running sums into the Counters of each interval.

    `reasons` maps a number to its name; `indexes` are the interfaces whose drivers' drops count.
    """

    def __init__(
        self, cells: Cells, reasons: dict[int, str], indexes: list[int], *, counts_new: bool
    ) -> None:
        self._cells = cells
        self._reasons = reasons
        self._indexes = frozenset(indexes)
        self._counts_new = counts_new
        self._conntrack = ConntrackMeter()
        self._totals = cells.totals()
        self._links = self._link_stats()
        self._softirq = parse_softirq(read_text("/proc/stat"))

    def read(self, seconds: float, *, one_in: float, also_lost: int) -> Counters:
        """Return everything exact about the interval since the last call."""
        now, before = self._cells.totals(), self._totals
        self._totals = now
        arrived = _minus(now.arrived, before.arrived)
        new = now.new_connections - before.new_connections
        conntrack = self._conntrack.sample(seconds, new if self._counts_new else None)
        drops = self._kernel_drops(_minus(now.drops, before.drops), conntrack)
        not_ip_dropped = sum(drop.packets for drop in drops if drop.reason in NOT_IP)
        drops += self._driver_drops(drops)
        accepted = _minus(now.accepted, before.accepted)
        not_ip = arrived[NON_IP]  # ARP and the like are delivered without passing the input hook
        not_ip_delivered = max(0, int(not_ip["packets"]) - not_ip_dropped)
        return Counters(
            seconds=seconds,
            arrived_packets=int(arrived["packets"].sum()),
            arrived_bytes=int(arrived["bytes"].sum()),
            accepted_packets=int(accepted["packets"].sum())
            + now.reassembled
            - before.reassembled
            + not_ip_delivered,
            accepted_bytes=int(accepted["bytes"].sum()) + (int(not_ip["bytes"]) if not_ip_delivered else 0),
            protocols={
                name: (int(row["packets"]), int(row["bytes"]))
                for name, row in zip(CLASSES, arrived, strict=True)
                if row["packets"]
            },
            drops=tuple(drops),
            conntrack=conntrack,
            records_lost=now.lost - before.lost + also_lost,
            one_in=one_in,
            softirq_share=self._softirq_share(),
        )

    def _kernel_drops(self, counts: NDArray[Any], conntrack: ConntrackSample | None) -> list[DropCount]:
        found: list[DropCount] = []
        for outbound, number in zip(*np.nonzero(counts["packets"]), strict=True):
            reason = safe_text(self._reasons.get(int(number), f"reason {number}"))
            if reason in NOT_A_LOSS:
                continue
            layer, before_delivery = place(reason, outbound=bool(outbound))
            row = counts[outbound, number]
            drop = DropCount(
                layer, reason, int(row["packets"]), int(row["bytes"]), before_delivery=before_delivery
            )
            found += split_conntrack(drop, conntrack) if reason == _NETFILTER else [drop]
        return found

    def _driver_drops(self, drops: list[DropCount]) -> list[DropCount]:
        """Return what the drivers dropped before the stack, less what the stack counted there as well."""
        now, before = self._link_stats(), self._links
        self._links = now
        totals = dict.fromkeys(("missed", "fifo", "errors", "dropped"), 0)
        for index, stats in now.items():
            last = before.get(index, stats)
            for name in totals:
                totals[name] += max(0, getattr(stats, name) - getattr(last, name))
        twice = sum(drop.packets for drop in drops if drop.reason in ("CPU_BACKLOG", "UNHANDLED_PROTO"))
        totals["dropped"] = max(0, totals["dropped"] - twice)
        totals["errors"] = max(0, totals["errors"] - totals["fifo"] - totals["missed"])
        if totals["missed"]:  # drivers that count both mean the same packets
            totals["fifo"] = 0
        return [
            DropCount("nic", f"RX_{name.upper()}", packets) for name, packets in totals.items() if packets
        ]

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
