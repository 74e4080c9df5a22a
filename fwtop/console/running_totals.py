"""Packets since the observation began, by what became of them: windows overlap, so they can't be added up."""

from __future__ import annotations

import numpy as np

from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.flow import end_of
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.model.traffic.snapshot import LedgerRow
from fwtop.stats.ledger import attributed, is_before_arrival


class RunningTotals:
    """Adds up the polls of one observation."""

    def __init__(self) -> None:
        self.packets = 0
        self.bytes = 0
        self.samples = 0
        self.lost = 0  # samples
        self.ends = {"mine": 0, "other": 0, "kernel": 0, "reaches": 0}

    def add(self, batch: PacketBatch, counters: Counters) -> None:
        """Add one poll; its samples tell which rules dropped packets."""
        self.packets += counters.arrived_packets
        self.bytes += counters.arrived_bytes
        self.samples += len(batch)
        self.lost += counters.records_lost
        left, late = counters.arrived_packets, 0
        for drop in attributed(counters, batch.select(np.flatnonzero(batch.hook == Hook.DROP))):
            self.ends[end_of(LedgerRow(drop.layer, drop.reason, drop.packets, 0.0, drop.rule))] += (
                drop.packets
            )
            if is_before_arrival(drop):  # neither counted as arrived so far nor part of what is left
                self.packets += drop.packets
                self.bytes += drop.bytes
            else:
                left -= drop.packets
            late += 0 if drop.before_delivery else drop.packets
        accepted = counters.accepted_packets
        self.ends["reaches"] += max(left if accepted is None else accepted - late, 0)
