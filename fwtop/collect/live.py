"""The live source of packets and counters, in the console process and without any privilege."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.accepted import LoggedAccepted
from fwtop.collect.counters import CounterReader, Interval
from fwtop.collect.glance import Arrivals, Glance
from fwtop.collect.holding import HeldSamples
from fwtop.collect.interfaces import Interfaces
from fwtop.collect.mapped import Cells
from fwtop.collect.parse import parse_packets
from fwtop.collect.processors import Processors
from fwtop.collect.ringbuf import RingBuffer
from fwtop.collect.shutter import Shutter
from fwtop.collect.symbols import Symbols
from fwtop.collect.xdp_counts import XdpCounts
from fwtop.model.counters import Counters
from fwtop.model.errors import FwtopError
from fwtop.model.packets import Hook, PacketBatch

SAMPLES_PER_SECOND = 20_000
_PRESSED_SAMPLES = 8_000  # a second, where every processor is full: what we take, the receivers lack
_RECORDS_PER_POLL = 1 << 14
# What arrives is what most tables show.
_SHARES = {Hook.INGRESS: 2, Hook.XDP: 2, Hook.DROP: 1, Hook.ACCEPTED: 1}
# What watching adds for each packet that arrived, was dropped, was accepted: measured here, with retpolines.
_NANOSECONDS = np.array([45.0, 75.0, 85.0])
_KINDS = ("tcx", "tracepoint", "netfilter")  # of places, in the same order
_NOTHING = 0.0005  # of a core: a program that costs less may stay attached between windows
_SHORTEST_SECONDS = 0.02  # an interval below says nothing about rates
_FAST = "xdp:"  # descriptors of what compiled XDP rules count
_MOST = 1 << 18  # the kernel's side takes no greater N


class LiveSource:
    """Reads what the observers left in the descriptors that the guardian passed on.

    `answer_data` and `fds` (by name) come from the loader; the descriptors become this object's.
    """

    def __init__(self, answer_data: dict[str, Any], fds: dict[str, int]) -> None:
        self._fds = dict(fds)
        reasons = {int(number): str(name) for number, name in answer_data["reasons"].items()}
        self._ring = RingBuffer(fds["ring"], int(answer_data["ring_bytes"]))
        self._cells = Cells(
            fds["cells"],
            fds["control"],
            cpus=int(answer_data["cpus"]),
            reasons=int(answer_data["reason_slots"]),
            places=int(answer_data["places"]),
        )
        self._shutter = Shutter(self._cells, answer_data["attachments"], fds)
        self._interfaces = Interfaces(
            [(str(name), int(index), bool(ethernet)) for name, index, ethernet in answer_data["chosen"]],
            move=self._shutter.move if answer_data["attachments"] else None,
            watch=self._cells.watch,
        )
        self._counters = CounterReader(
            self._cells,
            reasons,
            self._interfaces,
            counts_new=bool(answer_data["counts_new"]),
            symbols=Symbols(fds.get("kallsyms")),
        )
        for item in answer_data["attachments"]:
            del self._fds[item["link"]]  # the shutter's from now on
        log = self._fds.pop("nflog", None)
        self._logged = LoggedAccepted(log, int(answer_data["log_one_in"])) if log is not None else None
        fast = {name.removeprefix(_FAST): item for name, item in fds.items() if name.startswith(_FAST)}
        self._xdp: XdpCounts | None = None
        if fast:
            with contextlib.suppress(FwtopError, OSError):  # before Linux 5.19 only root may read maps
                self._xdp = XdpCounts(fast, cpus=int(answer_data["fast_layout"]["cpus"]))
        self._held = HeldSamples()
        self._processors = Processors()
        self._glance = Glance(self._arrivals)
        self._time = time.monotonic()
        self._one_in = dict.fromkeys(_SHARES, 1)

    def fileno(self) -> int:
        """Return the ring's descriptor; it is readable while records are pending."""
        return self._fds["ring"]

    @property
    def notes(self) -> tuple[str, ...]:
        """What became of the watched interfaces, as lines for people."""
        return self._interfaces.notes

    @property
    def pressed(self) -> bool:
        """Whether no processor had time to spare before the last call of `poll`."""
        return self._processors.pressed

    def glance(self) -> bool:
        """Say whether another thing arrives than at the last glance: much cheaper than `poll`."""
        return self._glance.look()

    def _arrivals(self) -> Arrivals:
        links = self._interfaces.look().values()
        packets, size = sum(link.packets for link in links), sum(link.bytes for link in links)
        return Arrivals(packets, size, self._cells.totals().arrived)

    def poll(self) -> tuple[PacketBatch, Counters]:
        """Return the packets sampled and everything counted since the last call; never blocks.

        Raises FwtopError when observing has become impossible.
        """
        if self._shutter.error:
            raise FwtopError(self._shutter.error)
        records = self._ring.read(_RECORDS_PER_POLL)
        now = time.monotonic()
        seconds = now - self._time
        self._time = now
        early = self._xdp.read() if self._xdp is not None else None
        early_packets = early.packets if early is not None else 0
        interval = self._counters.read(
            seconds,
            one_in=self._one_in[Hook.INGRESS],
            windows=self._shutter.was_shut(),
            unseen=early_packets,
        )
        if seconds >= _SHORTEST_SECONDS:
            self._adapt(interval, early_packets, seconds)
        records, factor = self._held.add(
            records,
            seen=interval.seen,
            arrived=interval.counted.arrived_packets,
            duty=self._shutter.duty,
            seconds=seconds,
        )
        batch, counters = _batch(records, factor), interval.counters
        counters = replace(counters, one_in=_one_in(records, factor) or counters.one_in)
        if self._logged is not None:
            largest = records["segments"].max(where=records["hook"] == Hook.INGRESS, initial=1)
            accepted, counters = self._logged.add(counters, time.monotonic_ns(), int(largest))
            batch = PacketBatch.concat([batch, accepted])
        if early is not None:
            counters = early.added_to(counters)  # last: none of it came as far as the log
        return batch, counters

    def _adapt(self, interval: Interval, early_packets: int, seconds: float) -> None:
        packets = interval.counted.per_cpu / seconds
        each = packets * _NANOSECONDS / 1e9
        costs = each.sum(axis=1)
        idle = self._processors.idle()
        self._processors.keep_off(costs.tolist(), idle)
        busiest = int(costs.argmax())
        # While another XDP program drops, the interface's counter doesn't say what reaches the windows
        cost = 0.0 if interval.foreign else float(costs[busiest])
        costly = frozenset(kind for kind, own in zip(_KINDS, each[busiest], strict=True) if own > _NOTHING)
        self._shutter.set_cost(cost, idle.get(busiest, 0.0), costly)
        # The samples are to be taken from what will be watched
        arrived, dropped, accepted = (packets.sum(axis=0) * self._shutter.duty).tolist()
        rates = {Hook.INGRESS: arrived, Hook.DROP: dropped, Hook.ACCEPTED: accepted}
        # Before the first XDP drop: a rule that goes in now may take all that arrives
        rates[Hook.XDP] = early_packets / seconds or arrived
        budget = _PRESSED_SAMPLES if self._processors.pressed else SAMPLES_PER_SECOND
        self._one_in |= choose_one_in(rates, budget)
        for hook, n in self._one_in.items():
            self._cells.set_one_in(hook, n)  # also where N stays: a ring that was full may have raised it
        if self._xdp is not None:
            self._xdp.set_one_in(self._one_in[Hook.XDP])

    def close(self) -> None:
        """Detach, unmap and close everything."""
        self._shutter.close()
        if self._logged is not None:
            self._logged.close()
        if self._xdp is not None:
            self._xdp.close()
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


def _one_in(records: NDArray[Any], factor: float) -> float:
    """Return the greatest N with which arrivals were sampled, 0 of none.

    A record's weight beyond it is the number of packets that were joined in it.
    """
    return float(records["one_in"].max(where=records["hook"] == Hook.INGRESS, initial=0)) * factor


def _batch(records: NDArray[Any], factor: float) -> PacketBatch:
    segments = np.maximum(records["segments"], 1)
    factors = np.where(records["hook"] == Hook.XDP, 1.0, factor)  # XDP rules sample all the time
    return parse_packets(
        np.ascontiguousarray(records["data"]),
        records["captured"].astype(np.uint16),
        link=records["link"],
        length=records["length"] // segments,
        time_ns=records["time_ns"].astype(np.int64),
        weight=records["one_in"].astype(np.float64) * segments * factors,
        hook=records["hook"],
        reason=records["reason"],
        rule=records["rule"],
        ifindex=records["ifindex"],
        whole=segments == 1,
    )
