"""The live source of packets and counters, in the unprivileged console."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.kernel.descriptors import close_all
from fwtop.kernel.drop_reasons import FunctionNames, NameLookup
from fwtop.live.counters import CounterReader, Interval
from fwtop.live.interfaces import Interfaces
from fwtop.live.load import Arrivals, ChangeDetector, Processors
from fwtop.live.mapped import CounterMaps, RingBuffer
from fwtop.live.nflog import LoggedAccepted
from fwtop.live.scaling import SamplePool
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.observe.duty_cycle import DutyCycle
from fwtop.observe.messages import XDP_COUNTERS, Observation
from fwtop.parse.packets import parse_packets
from fwtop.xdp.counts import XdpCounts

SAMPLES_PER_SECOND = 20_000
FEWER_SAMPLES = 8_000  # if nobody looks, or every processor is full: we compete with the receivers
_RECORDS_PER_POLL = 1 << 14
# Most tables show arrivals.
_SHARES = {Hook.INGRESS: 2, Hook.XDP: 2, Hook.DROP: 1, Hook.ACCEPTED: 1}
# Cost of observing an arrived, a dropped, an accepted packet, in ns: measured, with retpolines.
_COST_NS = np.array([45.0, 75.0, 85.0])
_KINDS = ({"tcx"}, {"tracepoint"}, {"netfilter", "egress"})  # of attach points, in the same order
_NEGLIGIBLE = 0.0005  # of a core: a program that costs less stays attached between windows
_MIN_SECONDS = 0.02  # a shorter interval says nothing about rates
_MAX_ONE_IN = 1 << 18  # as in bpf/counters.h


class LiveSource:
    """Polls the observers through the descriptors that the guardian passed on.

    It owns the descriptors `fds`, by name. Two callbacks ask root for what needs privileges: `ask_symbols`
    for the names of kernel functions, `renew_scope` to find the watched interfaces again. About `samples` are
    taken a second.
    """

    def __init__(
        self,
        observation: Observation,
        fds: dict[str, int],
        *,
        ask_symbols: NameLookup | None = None,
        renew_scope: Callable[[], None] | None = None,
        samples: int = SAMPLES_PER_SECOND,
    ) -> None:
        self._fds = dict(fds)
        self._ring = RingBuffer(fds["ring"], observation.ring_bytes)
        self._maps = CounterMaps(
            fds["counters"], fds["control"], cpus=observation.cpus, reasons=observation.reason_slots
        )
        self._renew_scope = renew_scope
        self._samples = samples
        self._max_watched = observation.max_watched
        self._watched = list(observation.watched)
        self._duty_cycle = DutyCycle(self._maps, observation.attachments, fds)
        self._interfaces = Interfaces(
            observation.interfaces,
            move=self._duty_cycle.move if observation.attachments else None,
            watch=self._watch,
        )
        self._counters = CounterReader(
            self._maps,
            observation.reasons,
            self._interfaces,
            counts_connections=observation.counts_connections,
            symbols=FunctionNames(ask_symbols),
        )
        for item in observation.attachments:
            del self._fds[item.link]  # owned by the duty cycle now
        log = self._fds.pop("nflog", None)
        self._logged = LoggedAccepted(log, observation.log_one_in) if log is not None else None
        maps = {name.removeprefix(XDP_COUNTERS): fds[name] for name in fds if name.startswith(XDP_COUNTERS)}
        self._xdp: XdpCounts | None = None
        if maps:
            with contextlib.suppress(FwtopError, OSError):  # before Linux 5.19 only root may read maps
                self._xdp = XdpCounts(maps, cpus=observation.cpus)
        self._pool = SamplePool()
        self._processors = Processors()
        self._change_detector = ChangeDetector(self._arrivals)
        self._time = time.monotonic()
        self._seconds = 0.0  # of the interval before
        self._one_in = dict.fromkeys(_SHARES, 1)

    def _watch(self, indexes: list[int]) -> bool:
        """Ask root to watch these interfaces too; returns whether all of them fit."""
        if indexes != self._watched and self._renew_scope is not None:
            self._watched = indexes
            self._renew_scope()
        return len(indexes) <= self._max_watched

    def fileno(self) -> int:
        """Return the ring's descriptor, readable while records are pending."""
        return self._fds["ring"]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator should know about the watched interfaces."""
        return self._interfaces.notes

    @property
    def cpu_saturated(self) -> bool:
        """Whether no processor had time to spare before the last poll."""
        return self._processors.cpu_saturated

    def traffic_changed(self) -> bool:
        """Return whether traffic has changed since the last call; much cheaper than `poll`."""
        return self._change_detector.changed()

    def _arrivals(self) -> Arrivals:
        return Arrivals(*self._interfaces.received(), self._maps.arrived())

    def poll(self) -> tuple[PacketBatch, Counters]:
        """Return samples and counters since the last call, without blocking.

        Raises FwtopError once observing is no longer possible.
        """
        if self._duty_cycle.error:
            raise FwtopError(self._duty_cycle.error)
        records = self._ring.read(_RECORDS_PER_POLL)
        now = time.monotonic()
        seconds = now - self._time
        self._time = now
        early = self._xdp.read() if self._xdp is not None else None
        early_packets = early.packets if early is not None else 0
        paused = self._duty_cycle.take_paused()
        interval = self._counters.read(
            seconds,
            one_in=self._one_in[Hook.INGRESS],
            paused=lambda: paused or self._duty_cycle.paused,
            unseen=early_packets,
        )
        if seconds >= _MIN_SECONDS:
            self._adapt(interval, early_packets, seconds)
        records, factor = self._pool.add(
            records,
            seen=interval.seen,
            arrived=interval.counted.arrived_packets,
            share=self._duty_cycle.share,
            seconds=seconds,
        )
        batch, counters = _batch(records, factor), interval.counters
        counters = replace(counters, one_in=_one_in(records, factor) or counters.one_in)
        if self._logged is not None:
            largest = records["segments"].max(where=records["hook"] == Hook.INGRESS, initial=1)
            accepted, counters = self._logged.add(counters, time.monotonic_ns(), int(largest))
            batch = PacketBatch.concat([batch, accepted])
        if early is not None:
            counters = early.added_to(counters)  # last: these packets never reached the log
        return batch, counters

    def _adapt(self, interval: Interval, early_packets: int, seconds: float) -> None:
        packets = interval.counted.per_cpu / seconds
        each = packets * _COST_NS / 1e9
        costs = each.sum(axis=1)
        idle = self._processors.idle()
        self._processors.avoid_receivers(costs.tolist(), idle)
        busiest = int(costs.argmax())
        # While another XDP program drops, the interface's counter can't scale up windows
        cost = 0.0 if interval.foreign else float(costs[busiest])
        dear = [kinds for kinds, own in zip(_KINDS, each[busiest], strict=True) if own > _NEGLIGIBLE]
        costly = frozenset(kind for kinds in dear for kind in kinds)
        self._duty_cycle.set_cost(cost, idle.get(busiest, 0.0), costly)
        rates = sampled_rates(packets.sum(axis=0), early_packets / seconds, self._duty_cycle.share)
        budget = FEWER_SAMPLES if self._processors.cpu_saturated else self._samples
        longest, self._seconds = max(seconds, self._seconds), seconds
        fitting = fitting_samples(self._ring.capacity, longest, early=early_packets > 0)
        self._one_in |= choose_one_in(rates, min(budget, fitting))
        for hook, n in self._one_in.items():
            self._maps.set_one_in(hook, n)  # even if unchanged: a full ring may have raised it
        if self._xdp is not None:
            self._xdp.set_one_in(self._one_in[Hook.XDP])

    def close(self) -> None:
        """Detach, unmap and close everything."""
        self._duty_cycle.close()
        self._interfaces.close()
        if self._logged is not None:
            self._logged.close()
        if self._xdp is not None:
            self._xdp.close()
        self._ring.close()
        self._maps.close()
        close_all(self._fds.values())
        self._fds = {}


def sampled_rates(packets: NDArray[Any], early: float, share: float) -> dict[Hook, float]:
    """Return the packets a second that each hook takes samples of.

    `packets` arrive, are dropped, are accepted a second; `early` are dropped by XDP rules before that. The
    observers see them for a `share` of the time, XDP rules always.
    """
    hooks = (Hook.INGRESS, Hook.DROP, Hook.ACCEPTED)
    rates = dict(zip(hooks, (packets * share).tolist(), strict=True))
    # Before the first XDP drop: a rule that is installed next may drop everything
    return {**rates, Hook.XDP: early or float(packets[0])}


def fitting_samples(capacity: int, seconds: float, *, early: bool) -> float:
    """Return the samples a second that fill half of a ring of so many records until the next poll.

    Beyond that the kernel thins them, so that the last packets weigh many times what the first do. Without
    `early` drops by XDP nearly half of the samples stay free for a rule that is installed next.
    """
    return capacity / (2 if early else 1) / seconds


def choose_one_in(rates: dict[Hook, float], budget: float = SAMPLES_PER_SECOND) -> dict[Hook, int]:
    """Return N for each hook, for about `budget` samples a second in total.

    A hook with fewer packets than its share is sampled in full, and leaves the rest of its share to the
    others.
    """
    chosen: dict[Hook, int] = {}
    waiting = dict(rates)
    while waiting:
        shares = sum(_SHARES[hook] for hook in waiting)
        quiet = [hook for hook in waiting if waiting[hook] <= budget * _SHARES[hook] / shares]
        if not quiet:
            for hook, rate in waiting.items():
                chosen[hook] = min(_MAX_ONE_IN, -int(-rate // (budget * _SHARES[hook] / shares)))
            break
        for hook in quiet:
            chosen[hook] = 1
            budget -= waiting.pop(hook)
    return chosen


def _one_in(records: NDArray[Any], factor: float) -> float:
    """Return the greatest N with which arrivals were sampled; 0 without any."""
    return float(records["one_in"].max(where=records["hook"] == Hook.INGRESS, initial=0)) * factor


def _batch(records: NDArray[Any], factor: float) -> PacketBatch:
    segments = np.maximum(records["segments"], 1)
    factors = np.where(records["hook"] == Hook.XDP, 1.0, factor)  # XDP rules sample without pauses
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
