"""Intervals with pauses in observing, from the kernel's figures."""

from __future__ import annotations

import time

import numpy as np

from fwtop.kernel.drop_reasons import FunctionNames
from fwtop.kernel.links import LinkStats
from fwtop.live.counters import CounterReader, Interval
from fwtop.live.mapped import Totals
from fwtop.model.traffic.counters import TRAFFIC_CLASSES

DROP = 2  # the number of a reason


class Kernel:
    """Running totals of the programs and of an interface; stands in for both."""

    def __init__(self) -> None:
        self.seen = self.dropped = self.received = 0

    def flood(self, packets: int) -> None:
        """Let packets arrive, all of them observed."""
        self.seen += packets
        self.received += packets

    def totals(self) -> Totals:
        """Return the programs' running totals: everything is UDP."""
        arrived = np.zeros((len(TRAFFIC_CLASSES), 2), np.int64)
        arrived[TRAFFIC_CLASSES.index("udp")] = self.seen, 60 * self.seen
        accepted = np.array([[self.seen - self.dropped, 60 * (self.seen - self.dropped)], [0, 0]])
        drops = np.zeros((2, 4, 2), np.int64)
        drops[0, DROP] = self.dropped, 60 * self.dropped
        each = np.array([[self.seen, self.dropped, self.seen - self.dropped]])
        return Totals(arrived, accepted, drops, 0, 0, 0, 0, 0, 0, 0, {}, each)

    def read(self) -> dict[int, LinkStats]:
        """Return the interface's running totals."""
        return {7: LinkStats(self.received, 0, 0, 0, 0)}


def read(kernel: Kernel, reader: CounterReader, seen: int, received: int, by_xdp: int) -> Interval:
    """Pass a quarter of a second in which three of four packets that the windows saw were dropped."""
    kernel.seen += seen
    kernel.dropped += seen * 3 // 4
    kernel.received += received
    return reader.read(0.25, one_in=1, paused=lambda: True, unseen=by_xdp)


def reader_of(kernel: Kernel) -> CounterReader:
    return CounterReader(
        kernel,  # type: ignore[arg-type]
        {DROP: "NETFILTER_DROP"},
        kernel,  # type: ignore[arg-type]
        counts_connections=False,
        symbols=FunctionNames(None),
    )


def test_counts_of_windows_are_scaled_to_the_interfaces_counters() -> None:
    kernel = Kernel()
    counters = read(kernel, reader_of(kernel), 1000, 20_000, 4_000).counters
    assert (counters.arrived_packets, counters.accepted_packets) == (16_000, 4_000)
    assert [drop.packets for drop in counters.drops] == [12_000]
    assert counters.watched == 1 / 16


def test_xdp_counters_ahead_of_the_interfaces_subtract_nothing_that_was_seen() -> None:
    kernel = Kernel()
    reader = reader_of(kernel)
    for seen in (1000, 10):
        counters = read(kernel, reader, seen, 20_000, 20_900).counters
        assert counters.arrived_packets == seen
        assert (counters.accepted_packets or 0) + sum(drop.packets for drop in counters.drops) == seen


class Busy(Kernel):
    """A machine that, on demand, suspends the reading process between its two readings."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def read(self) -> dict[int, LinkStats]:
        if self.waits:
            self.waits -= 1
            time.sleep(0.05)
            self.flood(5_000)
        return super().read()


def test_arrivals_between_two_readings_are_counted_once() -> None:
    """One interval is observed in full, the next one is not; both totals are of the same moment."""
    kernel = Busy()
    reader = reader_of(kernel)
    kernel.waits = 2
    kernel.flood(10_000)
    first = reader.read(0.25, one_in=1, paused=lambda: False).counters
    kernel.received += 10_000
    second = reader.read(0.25, one_in=1, paused=lambda: True).counters
    assert first.arrived_packets + second.arrived_packets == kernel.received == 30_000
