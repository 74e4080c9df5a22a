"""Accepted packets and their number from NFLOG, put beside what the BPF programs counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.collect.nflog import Logged, NflogReader
from fwtop.collect.parse import parse_packets
from fwtop.collect.reasons import reached_tc
from fwtop.model.counters import Counters
from fwtop.model.packets import Hook, PacketBatch

_ETHERNET_BYTES = 14
_KEPT = 0.9  # of what was left over, from one interval to the next, where packets are joined


class LoggedAccepted:
    """Adds what NFLOG tells to each interval: 1 in `one_in` accepted packets, exactly by turns."""

    def __init__(self, descriptor: int, one_in: int) -> None:
        self._reader = NflogReader(descriptor)
        self._one_in = one_in
        self._balance = 0.0
        self._largest = 1.0
        self._variance = 0.0

    def add(self, counters: Counters, time_ns: int, largest: int = 1) -> tuple[PacketBatch, Counters]:
        """Return the accepted packets and the counters with their number filled in.

        `largest` is the greatest number of packets that the stack joined in one (GRO), of those sampled.
        """
        logged = self._reader.read()
        segments = logged.segments
        joined = float(segments.mean()) if len(segments) else 1.0
        measured = logged.count * self._one_in * joined
        before = sum(drop.packets for drop in counters.drops if drop.before_delivery and reached_tc(drop))
        self._note_joined(logged, largest)
        accepted = self._settle(max(0, counters.arrived_packets - before), measured)
        size = float((logged.length + _ETHERNET_BYTES).mean() / joined) if len(segments) else 0.0
        batch = self._batch(logged, time_ns)
        return batch, replace(
            counters,
            accepted_packets=accepted,
            accepted_bytes=round(accepted * size),
            records_lost=counters.records_lost + logged.count - len(segments),
        )

    def _note_joined(self, logged: Logged, largest: int) -> None:
        """Where packets come joined, a record in the log stands for another number each time.

        So what the log says varies by chance: what it differs by is forgotten bit by bit, not added up.
        """
        segments = logged.segments
        self._largest = max(float(largest), float(segments.max(initial=1)), self._largest * _KEPT)
        if self._largest > 1:
            self._balance *= _KEPT
            spread = float(segments.var()) if len(segments) else 0.0
            self._variance = self._variance * _KEPT**2 + logged.count * spread * self._one_in**2

    def _settle(self, expected: int, measured: float) -> int:
        """Return how many were accepted, given what must have been and what the log says.

        The log tells whole multiples of N: as long as the two never differ by more, in all, the expected
        number is what the log confirms. What goes beyond is a real difference and comes out.
        """
        self._balance += expected - measured
        grain = 2 * self._one_in * self._largest
        if abs(self._balance) <= grain + 0.01 * measured + 3 * self._variance**0.5:
            return expected
        accepted = max(0, round(expected - self._balance))
        self._balance -= expected - accepted
        return accepted

    def _batch(self, logged: Logged, time_ns: int) -> PacketBatch:
        rows = len(logged.captured)
        segments = logged.segments
        return parse_packets(
            logged.data,
            logged.captured,
            link=0,
            length=logged.length // np.maximum(segments, 1) + np.uint32(_ETHERNET_BYTES),
            time_ns=np.full(rows, time_ns, np.int64),
            weight=self._one_in * segments.astype(np.float64),
            hook=int(Hook.ACCEPTED),
            ifindex=logged.ifindex,
        )

    def close(self) -> None:
        """Close the socket."""
        self._reader.close()
