"""What windows of time saw is scaled to what the interfaces counted: packets and bytes are exact in all."""

from __future__ import annotations

import numpy as np

from fwtop.collect.cell import CLASSES
from fwtop.collect.mapped import BYTES, Totals
from fwtop.collect.scaling import WindowScale


def totals(udp: tuple[int, int], tcp: tuple[int, int]) -> Totals:
    arrived = np.zeros((len(CLASSES), 2), np.int64)
    arrived[CLASSES.index("udp")], arrived[CLASSES.index("tcp")] = udp, tcp
    none, drops = np.zeros((2, 2), np.int64), np.zeros((2, 3, 2), np.int64)
    return Totals(arrived, none, drops, 0, 0, 0, 0, 0, 0, {}, np.zeros((1, 3), np.int64))


def whole(scale: WindowScale, size: int | None, packets: int = 10_000) -> tuple[int, int]:
    found = scale.whole(totals((800, 80_000), (200, 12_000)), packets, size)
    return found.arrived_packets, int(found.arrived[:, BYTES].sum())


def test_packets_and_bytes_are_those_of_the_interface() -> None:
    assert whole(WindowScale(), 940_000) == (10_000, 940_000)


def test_without_bytes_of_the_interface_packets_are_the_measure() -> None:
    assert whole(WindowScale(), None) == (10_000, 920_000)


def test_a_driver_that_counts_the_check_sequence_too_is_found_out() -> None:
    scale = WindowScale()
    scale.compare(totals((500, 50_000), (500, 30_000)), 1000, 80_000 + 4 * 1000)
    assert whole(scale, 940_000 + 4 * 10_000) == (10_000, 940_000)


def test_bytes_that_mean_another_thing_are_not_taken() -> None:
    assert whole(WindowScale(), 0) == (10_000, 920_000)
    assert whole(WindowScale(), 9_200_000) == (10_000, 920_000)


def test_an_interval_without_a_window_goes_by_the_last_one() -> None:
    scale = WindowScale()
    whole(scale, 920_000)
    found = scale.whole(totals((0, 0), (0, 0)), 2000, 190_000)
    assert (found.arrived_packets, int(found.arrived[:, BYTES].sum())) == (2000, 190_000)
