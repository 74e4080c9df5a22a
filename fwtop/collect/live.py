"""The live source of packets and counters, in the console process and without any privilege."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.counters import Cells, CounterReader
from fwtop.collect.parse import parse_packets
from fwtop.collect.ringbuf import RingBuffer
from fwtop.model.counters import Counters
from fwtop.model.packets import Hook, PacketBatch

SAMPLES_PER_SECOND = 20_000
_RECORDS_PER_POLL = 1 << 14
_SHARES = {Hook.INGRESS: 2, Hook.DROP: 1, Hook.ACCEPTED: 1}  # what arrives is what most tables show
_SHORTEST_SECONDS = 0.02  # an interval below says nothing about rates
_MOST = 1 << 18  # the kernel's side takes no greater N


class LiveSource:
    """Reads what the observers left in the descriptors that the guardian passed on.

    `answer_data` and `fds` (by name) come from the loader; the descriptors become this object's.
    """

    def __init__(self, answer_data: dict[str, Any], fds: dict[str, int]) -> None:
        self._fds = fds
        reasons = {int(number): str(name) for number, name in answer_data["reasons"].items()}
        self._ring = RingBuffer(fds["ring"], int(answer_data["ring_bytes"]))
        self._cells = Cells(
            fds["cells"],
            fds["control"],
            cpus=int(answer_data["cpus"]),
            reasons=int(answer_data["reason_slots"]),
        )
        indexes = [int(index) for index in answer_data["indexes"]]
        self._counters = CounterReader(
            self._cells, reasons, indexes, counts_new=bool(answer_data["counts_new"])
        )
        self._time = time.monotonic()
        self._one_in = dict.fromkeys(_SHARES, 1)

    def fileno(self) -> int:
        """Return the ring's descriptor; it is readable while records are pending."""
        return self._fds["ring"]

    def poll(self) -> tuple[PacketBatch, Counters]:
        """Return the packets sampled and everything counted since the last call; never blocks."""
        records = self._ring.read(_RECORDS_PER_POLL)
        now = time.monotonic()
        seconds = now - self._time
        self._time = now
        counters = self._counters.read(seconds, one_in=self._one_in[Hook.INGRESS], also_lost=0)
        if seconds >= _SHORTEST_SECONDS:
            self._adapt(counters)
        return _batch(records), counters

    def _adapt(self, counters: Counters) -> None:
        rates = {
            Hook.INGRESS: counters.arrived_packets / counters.seconds,
            Hook.DROP: sum(drop.packets for drop in counters.drops) / counters.seconds,
            Hook.ACCEPTED: (counters.accepted_packets or 0) / counters.seconds,
        }
        for hook, n in choose_one_in(rates).items():
            if n != self._one_in[hook]:
                self._one_in[hook] = n
                self._cells.set_one_in(hook, n)

    def close(self) -> None:
        """Unmap and close everything."""
        self._ring.close()
        self._cells.close()
        for descriptor in self._fds.values():
            os.close(descriptor)
        self._fds = {}


def choose_one_in(rates: dict[Hook, float], budget: float = SAMPLES_PER_SECOND) -> dict[Hook, int]:
    """Return N for each hook so that all of them together give about `budget` samples a second.

    A hook that is quieter than its share is seen whole and leaves the rest of it to the others.
    """
    chosen: dict[Hook, int] = {}
    waiting = dict(rates)
    while waiting:
        parts = sum(_SHARES[hook] for hook in waiting)
        quiet = [hook for hook in waiting if waiting[hook] <= budget * _SHARES[hook] / parts]
        if not quiet:
            for hook, rate in waiting.items():
                chosen[hook] = min(_MOST, -int(-rate // (budget * _SHARES[hook] / parts)))
            break
        for hook in quiet:
            chosen[hook] = 1
            budget -= waiting.pop(hook)
    return chosen


def _batch(records: NDArray[Any]) -> PacketBatch:
    segments = np.maximum(records["segments"], 1)
    return parse_packets(
        np.ascontiguousarray(records["data"]),
        records["captured"].astype(np.uint16),
        link=records["link"],
        length=records["length"] // segments,
        time_ns=records["time_ns"].astype(np.int64),
        weight=records["one_in"].astype(np.float64) * segments,
        hook=records["hook"],
        reason=records["reason"],
        rule=records["rule"],
        ifindex=records["ifindex"],
        whole=segments == 1,
    )
