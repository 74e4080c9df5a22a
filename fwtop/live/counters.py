"""Exact counts of each interval, from the kernel's own counters: the basis of the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.kernel.drop_reasons import NOT_A_LOSS, NOT_IP, FunctionNames, layer_of_reason, reached_tc
from fwtop.kernel.links import LinkStats
from fwtop.kernel.procfs import NapiThreads, Ticks, parse_ticks, read_text
from fwtop.live.connections import ConntrackMeter
from fwtop.live.drops import (
    ForeignXdp,
    FragmentMeter,
    Sums,
    driver_drops,
    grown,
    split_conntrack,
    split_locations,
)
from fwtop.live.interfaces import Interfaces
from fwtop.live.mapped import BYTES, PACKETS, CounterMaps, Totals
from fwtop.live.scaling import WindowScale
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import NETFILTER_DROP, TRAFFIC_CLASSES, ConntrackSample, Counters, DropCount

FOREIGN_XDP = "XDP_DROP (foreign)"
_NOT_SPECIFIED = "NOT_SPECIFIED"
_READ_SECONDS = 0.001  # usual time to read both totals with few interfaces
_SLOW = 3.0  # times the usual time: the process was scheduled out in between
_SLOWER = 1.1  # growth of the usual time in each interval in which all readings are slow
_TRIES = 4


class Interval(Struct, frozen=True):
    """An interval's counters, with the totals behind them."""

    counters: Counters
    counted: Totals
    seen: int  # packets that the programs saw
    foreign: int  # packets that another XDP program dropped or redirected


class CounterReader:
    """Turns running totals into the Counters of each interval.

    `reasons` maps drop reasons to names; drops by the drivers of `interfaces` are included.
    """

    def __init__(
        self,
        maps: CounterMaps,
        reasons: dict[int, str],
        interfaces: Interfaces,
        *,
        counts_connections: bool,
        symbols: FunctionNames,
    ) -> None:
        self._maps = maps
        self._reasons = reasons
        self._interfaces = interfaces
        self._counts_new = counts_connections
        self._symbols = symbols
        self._conntrack = ConntrackMeter()
        self._usual_seconds = _READ_SECONDS
        self._fragments = FragmentMeter()
        self._foreign = ForeignXdp()
        self._scale = WindowScale()
        self._totals, self._links = self._sums()
        self._threads = NapiThreads()
        self._ticks, self._cores = self._all_ticks(), read_text("/proc/stat").count("\ncpu")

    def read(self, seconds: float, *, one_in: float, paused: Callable[[], bool], unseen: int = 0) -> Interval:
        """Return the counters of the interval since the last call.

        `unseen` packets were received by an interface and dropped by our XDP program, before any hook here.
        `paused` is called after the totals are read, and returns whether observing paused in the interval:
        then the programs' counts are scaled up to the interfaces'.
        """
        before, links_before = self._totals, self._links
        now, links = self._totals, self._links = self._sums()
        scaled = paused()
        counted = now.since(before)
        seen = counted.arrived_packets
        received, size = (grown(links, links_before, name) for name in ("packets", "bytes"))
        # Drivers with XDP count bytes differently
        by_xdp = unseen > 0 or any(stats.native_xdp for stats in links.values())
        if scaled:
            counted = self._scale.extrapolate(counted, received - unseen, None if by_xdp else size)
        else:
            self._scale.learn(counted, received, None if by_xdp else size)
        conntrack = self._conntrack.sample(seconds, counted.new_connections if self._counts_new else None)
        drops = self._kernel_drops(counted, conntrack)
        foreign = 0
        if scaled or not any(stats.native_xdp for stats in links.values()):
            self._foreign.forget()
        else:
            foreign = self._foreign.sample(received, seen + unseen, seconds)
        drops += driver_drops(links, links_before, drops, unseen + foreign)
        if foreign:
            drops.append(DropCount("xdp", FOREIGN_XDP, foreign))
        watched = min(1.0, seen / counted.arrived_packets) if counted.arrived_packets else 1.0
        counters = self._counters(
            counted, drops, conntrack, seconds=seconds, one_in=one_in / (watched or 1.0), watched=watched
        )
        before_delivery = sum(drop.packets for drop in drops if drop.before_delivery and reached_tc(drop))
        missing = counters.arrived_packets - before_delivery - (counters.accepted_packets or 0)
        waiting = self._fragments.sample(
            counted.reassembled + counted.dropped_fragments,
            missing,
            drops,
            Sums(counted.fragments6, counted.reassembled6),
        )
        return Interval(replace(counters, drops=(*counters.drops, *waiting)), counted, seen, foreign)

    def _sums(self) -> tuple[Totals, dict[int, LinkStats]]:
        """Read the running totals of the programs and of the interfaces, as of one moment.

        Intervals without pauses use the former, others the latter. If this process is scheduled out between
        the two readings, packets that arrive meanwhile would be counted in neither of two intervals, or in
        both: many milliseconds of a flood. So it reads again if that took long.
        """
        readings = []
        for _ in range(_TRIES):
            started = time.monotonic()
            totals, links = self._maps.totals(), self._interfaces.read()
            readings.append((time.monotonic() - started, totals, links))
            if readings[-1][0] <= self._usual_seconds * _SLOW:
                break
        taken, totals, links = min(readings, key=lambda reading: reading[0])
        # The quickest recent reading: more interfaces take longer
        self._usual_seconds = max(_READ_SECONDS, min(taken, self._usual_seconds * _SLOWER))
        return totals, links

    def _counters(
        self,
        counted: Totals,
        drops: list[DropCount],
        conntrack: ConntrackSample | None,
        *,
        seconds: float,
        one_in: float,
        watched: float,
    ) -> Counters:
        # ARP and others are delivered without passing the input hook
        not_ip = counted.arrived[TRAFFIC_CLASSES.index("non_ip")]
        not_ip_dropped = sum(drop.packets for drop in drops if drop.reason in NOT_IP)
        not_ip_delivered = max(0, int(not_ip[PACKETS]) - not_ip_dropped)
        accepted = counted.accepted.sum(axis=0)
        return Counters(
            seconds=seconds,
            arrived_packets=counted.arrived_packets,
            arrived_bytes=int(counted.arrived[:, BYTES].sum()),
            accepted_packets=int(accepted[PACKETS]) + counted.reassembled + not_ip_delivered,
            accepted_bytes=int(accepted[BYTES]) + (int(not_ip[BYTES]) if not_ip_delivered else 0),
            protocols={
                name: (int(row[PACKETS]), int(row[BYTES]))
                for name, row in zip(TRAFFIC_CLASSES, counted.arrived, strict=True)
                if row[PACKETS]
            },
            drops=tuple(drops),
            conntrack=conntrack,
            records_lost=counted.lost,
            one_in=one_in,
            softirq_share=self._softirq_share(),
            cores=self._cores,
            watched=watched,
        )

    def _kernel_drops(self, counted: Totals, conntrack: ConntrackSample | None) -> list[DropCount]:
        found: list[DropCount] = []
        counts = counted.drops
        for outbound, number in zip(*np.nonzero(counts[..., PACKETS]), strict=True):
            reason = safe_text(self._reasons.get(int(number), f"reason {number}"))
            if reason in NOT_A_LOSS:
                continue
            layer, before_delivery = layer_of_reason(reason, outbound=bool(outbound))
            packets, size = counts[outbound, number].tolist()
            drop = DropCount(layer, reason, packets, size, before_delivery=before_delivery, code=int(number))
            if reason == NETFILTER_DROP:
                drop = replace(drop, filtered=packets if outbound else min(counted.filtered, packets))
                found.append(drop)
            elif reason == _NOT_SPECIFIED and not outbound:
                found += split_locations(
                    drop, counted.locations, self._symbols.names(list(counted.locations))
                )
            else:
                found.append(drop)
        return split_conntrack(found, conntrack)

    def _softirq_share(self) -> float | None:
        now, before = self._all_ticks(), self._ticks
        self._ticks = now
        spent = now.total - before.total
        return max(now.softirq - before.softirq, 0) / spent if spent > 0 else None

    def _all_ticks(self) -> Ticks:
        """Return the ticks of all processors; what threads do in place of softirqs counts as theirs."""
        found = parse_ticks(read_text("/proc/stat").partition("\n")[0]).get(None, Ticks())
        return found._replace(softirq=found.softirq + self._threads.ticks())
