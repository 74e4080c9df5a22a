"""Counts of windows are scaled to the interfaces' counters: total packets and bytes are exact."""

from __future__ import annotations

import numpy as np

from fwtop.live.mapped import BYTES, Totals
from fwtop.live.scaling import WindowScale
from fwtop.model.traffic.counters import TRAFFIC_CLASSES


def totals(udp: tuple[int, int], tcp: tuple[int, int]) -> Totals:
    arrived = np.zeros((len(TRAFFIC_CLASSES), 2), np.int64)
    arrived[TRAFFIC_CLASSES.index("udp")], arrived[TRAFFIC_CLASSES.index("tcp")] = udp, tcp
    none, drops = np.zeros((2, 2), np.int64), np.zeros((2, 3, 2), np.int64)
    return Totals(arrived, none, drops, 0, 0, 0, 0, 0, 0, 0, {}, np.zeros((1, 3), np.int64))


def extrapolated(scale: WindowScale, size: int | None, packets: int = 10_000) -> tuple[int, int]:
    found = scale.extrapolate(totals((800, 80_000), (200, 12_000)), packets, size)
    return found.arrived_packets, int(found.arrived[:, BYTES].sum())


def test_packets_and_bytes_are_those_of_the_interface() -> None:
    assert extrapolated(WindowScale(), 940_000) == (10_000, 940_000)


def test_without_the_interfaces_bytes_packets_set_the_scale() -> None:
    assert extrapolated(WindowScale(), None) == (10_000, 920_000)


def test_frame_check_sequences_in_the_interfaces_bytes_are_detected() -> None:
    scale = WindowScale()
    scale.learn(totals((500, 50_000), (500, 30_000)), 1000, 80_000 + 4 * 1000)
    assert extrapolated(scale, 940_000 + 4 * 10_000) == (10_000, 940_000)


def test_implausible_byte_counters_are_ignored() -> None:
    assert extrapolated(WindowScale(), 0) == (10_000, 920_000)
    assert extrapolated(WindowScale(), 9_200_000) == (10_000, 920_000)


def test_an_interval_without_packets_in_windows_uses_the_last_one() -> None:
    scale = WindowScale()
    extrapolated(scale, 920_000)
    found = scale.extrapolate(totals((0, 0), (0, 0)), 2000, 190_000)
    assert (found.arrived_packets, int(found.arrived[:, BYTES].sum())) == (2000, 190_000)


def test_windows_without_packets_use_what_was_seen_before_them() -> None:
    """On a busy machine the sender may pause during the first window: 6 % of a flood went missing."""
    scale = WindowScale()
    scale.learn(totals((800, 80_000), (200, 12_000)), 1000, 92_000)
    found = scale.extrapolate(totals((0, 0), (0, 0)), 30_000, 2_760_000)
    assert (found.arrived_packets, int(found.arrived[:, BYTES].sum())) == (30_000, 2_760_000)


def test_packets_that_arrive_before_any_is_seen_are_counted_with_the_next() -> None:
    scale = WindowScale()
    assert scale.extrapolate(totals((0, 0), (0, 0)), 30_000, None).arrived_packets == 0
    assert extrapolated(scale, 920_000) == (40_000, 3_680_000)
    assert extrapolated(scale, 920_000) == (10_000, 920_000)
