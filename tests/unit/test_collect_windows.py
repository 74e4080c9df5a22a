"""Intervals that were counted in windows of time, from figures as the kernel gives them."""

from __future__ import annotations

import numpy as np

from fwtop.collect.cell import CLASSES
from fwtop.collect.counters import CounterReader, Interval
from fwtop.collect.links import LinkStats
from fwtop.collect.mapped import Totals
from fwtop.collect.symbols import Symbols

DROP = 2  # the number of a reason


class Kernel:
    """What the programs and an interface have counted so far, in the place of both."""

    def __init__(self) -> None:
        self.seen = self.dropped = self.received = 0

    def totals(self) -> Totals:
        """Return the programs' running sums: all of it UDP."""
        arrived = np.zeros((len(CLASSES), 2), np.int64)
        arrived[CLASSES.index("udp")] = self.seen, 60 * self.seen
        accepted = np.array([[self.seen - self.dropped, 60 * (self.seen - self.dropped)], [0, 0]])
        drops = np.zeros((2, 4, 2), np.int64)
        drops[0, DROP] = self.dropped, 60 * self.dropped
        each = np.array([[self.seen, self.dropped, self.seen - self.dropped]])
        return Totals(arrived, accepted, drops, 0, 0, 0, 0, 0, 0, {}, each)

    def look(self) -> dict[int, LinkStats]:
        """Return the interface's running sum."""
        return {7: LinkStats(self.received, 0, 0, 0, 0)}


def read(kernel: Kernel, reader: CounterReader, seen: int, received: int, by_xdp: int) -> Interval:
    """Let a quarter of a second pass in which three of four packets that the windows saw were dropped."""
    kernel.seen += seen
    kernel.dropped += seen * 3 // 4
    kernel.received += received
    return reader.read(0.25, one_in=1, windows=True, unseen=by_xdp)


def reader_of(kernel: Kernel) -> CounterReader:
    return CounterReader(
        kernel,  # type: ignore[arg-type]
        {DROP: "NETFILTER_DROP"},
        kernel,  # type: ignore[arg-type]
        counts_new=False,
        symbols=Symbols(None),
    )


def test_what_windows_saw_is_scaled_to_what_the_interface_received() -> None:
    kernel = Kernel()
    counters = read(kernel, reader_of(kernel), 1000, 20_000, 4_000).counters
    assert (counters.arrived_packets, counters.accepted_packets) == (16_000, 4_000)
    assert [drop.packets for drop in counters.drops] == [12_000]
    assert counters.watched == 1 / 16


def test_xdp_counters_that_are_ahead_of_the_interfaces_take_away_nothing_that_was_seen() -> None:
    kernel = Kernel()
    reader = reader_of(kernel)
    for seen in (1000, 10):
        counters = read(kernel, reader, seen, 20_000, 20_900).counters
        assert counters.arrived_packets == seen
        assert (counters.accepted_packets or 0) + sum(drop.packets for drop in counters.drops) == seen
