"""The observers' counters and controls, mapped: reading takes neither a system call nor privileges."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from fwtop.observe.layout import CONTROL_WORDS, HOOKS, counters_bytes, counters_dtype

Count = NDArray[np.int64]  # (…, 2): packets, bytes
PACKETS, BYTES = 0, 1
_SUMS = (
    "reassembled", "dropped_fragments", "fragments6", "reassembled6", "filtered", "new_connections", "lost",
)  # fmt: skip
_ENABLED, _COUNTING = HOOKS, HOOKS + 1  # words of struct fwtop_control behind one_in


class Totals(Struct, frozen=True):
    """Counts of all CPUs, since the programs were attached or in an interval."""

    arrived: Count  # (classes,)
    accepted: Count  # (2,): input, forward
    drops: Count  # (2, reasons): inbound, outbound
    reassembled: int  # fragments of accepted packets, not counting the first of each
    dropped_fragments: int  # the same of dropped packets
    fragments6: int  # IPv6 fragments that arrived
    reassembled6: int  # IPv6 packets made of them
    filtered: int  # netfilter's inbound drops behind routing
    new_connections: int
    lost: int  # samples
    locations: dict[int, int]  # drops without a reason: index in struct fwtop_locations → packets
    per_cpu: NDArray[np.int64]  # (cpus, 3): arrived, dropped, accepted packets

    def since(self, before: Totals) -> Totals:
        """Return the interval between two readings."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Totals(*(_grown(now, old) for now, old in pairs))

    def scaled(self, factor: float) -> Totals:
        """Extrapolate counts of a part of the time to all of it; lost samples are not extrapolated."""
        return replace(Totals(*(_scaled(value, factor) for value in astuple(self))), lost=self.lost)

    @property
    def arrived_packets(self) -> int:
        """Packets of all classes."""
        return int(self.arrived[:, PACKETS].sum())


class CounterMaps:
    """The per-CPU counters and the control block of the observers."""

    def __init__(self, counters_fd: int, control_fd: int, *, cpus: int, reasons: int) -> None:
        self._counters_map = mmap.mmap(counters_fd, _pages(cpus * counters_bytes(reasons)))
        self._control_map = mmap.mmap(control_fd, _pages(4 * CONTROL_WORDS))
        self._counters = np.frombuffer(self._counters_map, counters_dtype(reasons), cpus)
        self._control = np.frombuffer(self._control_map, np.uint32, CONTROL_WORDS)

    def arrived(self) -> Count:
        """Sum up only the packets that arrived, by class."""
        return np.asarray(_counts(self._counters["arrived"]).sum(axis=0), np.int64)

    def totals(self) -> Totals:
        """Sum up the CPUs' counters."""
        counters = self._counters.copy()
        arrived, accepted, drops = (_counts(counters[name]) for name in ("arrived", "accepted", "drops"))
        locations = enumerate(counters["locations"].sum(axis=0).tolist())
        return Totals(
            arrived=arrived.sum(axis=0),
            accepted=accepted.sum(axis=0),
            drops=drops.sum(axis=0),
            **{name: int(counters[name].sum()) for name in _SUMS},
            locations={index: packets for index, packets in locations if packets},
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
        """Sample 1 in n from now on; cut longer countdowns, or a quiet hook would go unsampled for long."""
        self._control[hook] = n
        longer = self._counters["drawn"][:, hook] > 2 * n
        if longer.any():
            self._counters["left"][longer, hook] = np.minimum(self._counters["left"][longer, hook], n)
            self._counters["drawn"][longer, hook] = n

    def enable(self) -> None:
        """Let all hooks count, from the next packet on that arrives."""
        self._control[_ENABLED] = 1

    def disable(self) -> None:
        """Stop counting at all hooks at once."""
        self._control[_ENABLED] = 0
        self._control[_COUNTING] = 0

    def close(self) -> None:
        """Unmap; the descriptors stay the caller's."""
        del self._counters, self._control
        self._counters_map.close()
        self._control_map.close()


def _grown(now: Any, before: Any) -> Any:  # noqa: ANN401 - numbers, arrays or numbers by key
    if isinstance(now, dict):
        return {key: count - before.get(key, 0) for key, count in now.items() if count > before.get(key, 0)}
    return now - before


def _scaled(value: Any, factor: float) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, dict):
        return {key: round(count * factor) for key, count in value.items()}
    return round(value * factor) if isinstance(value, int) else np.rint(value * factor).astype(np.int64)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _counts(pairs: NDArray[Any]) -> Count:
    """Return packets and bytes as a last axis of 2."""
    return np.stack([pairs["packets"], pairs["bytes"]], axis=-1).astype(np.int64)
