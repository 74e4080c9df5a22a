"""The newest sampled packets: written by the observing thread, read by any other without a lock."""

from __future__ import annotations

import time

import numpy as np

from fwtop.analysis.packets.recent import MOST_PACKETS, DropReason, RecentPackets
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, PacketBatch

_MOST_OUTCOMES = 2 * MOST_PACKETS  # samples at each other hook
_ARRIVED = (Hook.INGRESS, Hook.XDP)


class PacketRing:
    """Keeps the newest packets; each addition makes a new immutable value, which replaces the last one."""

    def __init__(self, most: int = MOST_PACKETS) -> None:
        self._most = most
        self._reasons: dict[int, DropReason] = {}
        self._latest = RecentPackets()

    @property
    def latest(self) -> RecentPackets:
        """The newest packets; the value never changes."""
        return self._latest

    def add(self, batch: PacketBatch, counters: Counters) -> None:
        """Take the samples of a poll; copies what it keeps."""
        self._learn(counters)
        if not len(batch):
            return
        old = self._latest
        hook = batch.hook
        arriving = np.flatnonzero(np.isin(hook, _ARRIVED))
        numbers = old.seen + np.arange(len(arriving), dtype=np.int64)
        arrived = _newest(old.arrived, batch.select(arriving[-self._most :]), self._most)
        kept = np.concatenate((old.numbers, numbers))[len(old.numbers) + len(numbers) - len(arrived) :]
        since = int(arrived.time_ns.min()) if len(arrived) else 0
        self._latest = RecentPackets(
            arrived,
            kept,
            _outcomes(old.dropped, batch.select(np.flatnonzero(hook == Hook.DROP)), since),
            _outcomes(old.accepted, batch.select(np.flatnonzero(hook == Hook.ACCEPTED)), since),
            time.time_ns() - time.monotonic_ns(),
            self._reasons,
            old.seen + len(arriving),
        )

    def _learn(self, counters: Counters) -> None:
        """Remember the names of drop reasons; a new table replaces the old one, which others may read."""
        found = {
            drop.code: DropReason(drop.layer, safe_text(drop.reason, limit=60))
            for drop in counters.drops
            if drop.code is not None
        }
        if any(self._reasons.get(code) != reason for code, reason in found.items()):
            self._reasons = {**self._reasons, **found}


def _newest(old: PacketBatch, new: PacketBatch, most: int) -> PacketBatch:
    left = max(most - len(new), 0)
    return _concat(old.select(np.arange(max(len(old) - left, 0), len(old))), new)


def _outcomes(old: PacketBatch, new: PacketBatch, since: int) -> PacketBatch:
    """Keep the samples that can belong to packets that are kept."""
    joined = _concat(old, new)
    rows = np.flatnonzero(joined.time_ns >= since)[-_MOST_OUTCOMES:]
    return joined if len(rows) == len(joined) else joined.select(rows)


def _concat(old: PacketBatch, new: PacketBatch) -> PacketBatch:
    return PacketBatch.concat([part for part in (old, new) if len(part)])
