"""What cores and queues receive, by the names that drivers give their counters."""

from __future__ import annotations

import pytest

from fwtop.kernel.procfs import parse_ticks
from fwtop.kernel.receive_path import by_queue
from fwtop.live.interfaces import ReceiveMeter
from fwtop.model.traffic.snapshot import Queue

# As ethtool -S prints them
VIRTIO = {"rx0_packets": 7, "rx0_bytes": 900, "rx0_drops": 2, "rx0_xdp_packets": 5, "rx0_xdp_drops": 4}
NEWER_VIRTIO = {"rx_drops": 1, "rx0_drops": 1, "rx0_xdp_packets": 0, "rx0_kicks": 9}
VETH = {"peer_ifindex": 3, "rx_queue_0_xdp_packets": 30, "rx_queue_0_drops": 1, "rx_queue_0_xdp_drops": 8}
INTEL = {"rx_queue_0_packets": 1, "rx_queue_1_packets": 2, "rx_queue_1_drops": 3, "tx_queue_0_packets": 9}
I40E = {"rx-0.packets": 5, "rx-0.bytes": 6, "rx-11.packets": 7}
MELLANOX = {"rx3_packets": 11, "rx3_buff_alloc_err": 4, "rx3_cache_full": 9, "rx_packets": 99}
BROADCOM = {"[2]: rx_ucast_packets": 3, "[2]: rx_mcast_packets": 1, "[2]: rx_discards": 6}
AMAZON = {"queue_1_rx_cnt": 8, "queue_1_rx_refil_partial": 9, "queue_1_tx_cnt": 7}


@pytest.mark.parametrize(
    ("counters", "queues"),
    [
        (VIRTIO, {0: (7, 2)}),
        (NEWER_VIRTIO, {0: (None, 1)}),
        (VETH, {0: (30, 1)}),
        (INTEL, {0: (1, 0), 1: (2, 3)}),
        (I40E, {0: (5, 0), 11: (7, 0)}),
        (MELLANOX, {3: (11, 4)}),
        (BROADCOM, {2: (4, 6)}),
        (AMAZON, {1: (8, 0)}),
        ({}, {}),
    ],
)
def test_counters_of_drivers_are_understood(
    counters: dict[str, int], queues: dict[int, tuple[int | None, int]]
) -> None:
    assert by_queue(counters) == queues


def test_rates_are_of_the_time_between_two_looks() -> None:
    meter = ReceiveMeter()
    assert meter.queues([("eth0", 0, 5_000, 1), ("eth0", 1, None, 0)]) == (
        Queue("eth0", 0, 0.0, 0.0),
        Queue("eth0", 1, None, 0.0),
    )
    one, _ = meter.queues([("eth0", 0, 6_000, 101), ("eth0", 1, None, 0)])
    assert one.pps is not None
    assert one.pps == pytest.approx(10 * one.drops)
    assert one.pps > 0
    (reset,) = meter.queues([("eth0", 0, 10, 0)])
    assert (reset.pps, reset.drops) == (0.0, 0.0), "a driver that was loaded again counts anew"


def test_softirq_is_told_by_core() -> None:
    text = "cpu  9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 0 0 10 0 0 0\ncpu11 0 0 0 5 0 0 5 0 0 0\nintr 5 cpu\n"
    assert {number: ticks[1:] for number, ticks in parse_ticks(text).items() if number is not None} == {
        0: (10, 20),
        11: (5, 10),
    }
    cores = ReceiveMeter().cores()
    assert cores
    assert all(0 <= core.softirq <= 1 and core.pps >= 0 for core in cores)
