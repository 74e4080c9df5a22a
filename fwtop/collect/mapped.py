"""The programs' counters and controls, mapped into this process: no system call and no privilege to read."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.cell import CONTROL_WORDS, HOOKS, NO_INTERFACE, cell_bytes, cell_dtype

Count = NDArray[np.int64]  # (…, 2): packets, bytes
PACKETS, BYTES = 0, 1
_ARMED, _OPEN = HOOKS, HOOKS + 1  # words of struct fwtop_control behind one_in


@dataclass(frozen=True, slots=True)
class Totals:
    """What the programs counted since they were attached, or in an interval."""

    arrived: Count  # (classes,)
    accepted: Count  # (2,): input, forward
    drops: Count  # (2, reasons): inbound, outbound
    reassembled: int  # fragments beyond the first of each packet that was accepted
    refused: int  # of each that was dropped
    fragments6: int  # of IPv6 that arrived
    whole6: int  # packets of IPv6 that were put together
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
            self.refused - before.refused,
            self.fragments6 - before.fragments6,
            self.whole6 - before.whole6,
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
            round(self.refused * factor),
            round(self.fragments6 * factor),
            round(self.whole6 * factor),
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
    """The kernel's cells and the samplers' control, mapped into this process.

    `places` is how many interfaces the programs can watch (FWTOP_WATCHED).
    """

    def __init__(self, cells_fd: int, control_fd: int, *, cpus: int, reasons: int, places: int) -> None:
        words = CONTROL_WORDS + places
        self._cells_map = mmap.mmap(cells_fd, _pages(cpus * cell_bytes(reasons)))
        self._control_map = mmap.mmap(control_fd, _pages(4 * words))
        self._cells = np.frombuffer(self._cells_map, cell_dtype(reasons), cpus)
        self._control = np.frombuffer(self._control_map, np.uint32, words)

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
            refused=int(cells["refused"].sum()),
            fragments6=int(cells["fragments6"].sum()),
            whole6=int(cells["whole6"].sum()),
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

    def watch(self, indexes: list[int]) -> bool:
        """Have these interfaces watched from now on; returns whether there was a place for all."""
        places = self._control[CONTROL_WORDS:]
        wanted = np.full(len(places), NO_INTERFACE, np.uint32)
        fitting = indexes[: len(places)]
        wanted[: len(fitting)] = fitting
        places[:] = wanted
        return len(fitting) == len(indexes)

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
