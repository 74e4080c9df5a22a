"""Exact counts of each interval from the kernel's own counters: the ledger's ground."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fwtop.collect.cell import CLASSES, NON_IP
from fwtop.collect.conntrack import ConntrackMeter
from fwtop.collect.drops import driver_drops, grown, split_conntrack, split_sites
from fwtop.collect.foreign_xdp import ForeignXdp
from fwtop.collect.fragments import FragmentMeter, Sums
from fwtop.collect.interfaces import Interfaces
from fwtop.collect.mapped import BYTES, PACKETS, Cells, Totals
from fwtop.collect.procfs import parse_softirq, read_text
from fwtop.collect.reasons import NOT_A_LOSS, NOT_IP, place, reached_tc
from fwtop.collect.scaling import WindowScale
from fwtop.collect.symbols import Symbols
from fwtop.model.counters import ConntrackSample, Counters, DropCount
from fwtop.model.text import safe_text

FOREIGN_XDP = "XDP_DROP (foreign)"
_NETFILTER = "NETFILTER_DROP"
_NOT_SPECIFIED = "NOT_SPECIFIED"


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval's counters, what they were made of, and how many packets the programs saw of all."""

    counters: Counters
    counted: Totals
    seen: int
    foreign: int  # packets that somebody else's XDP program took


class CounterReader:
    """Turns running sums into the Counters of each interval.

    `reasons` maps a number to its name; `interfaces` are those whose drivers' drops count.
    """

    def __init__(
        self,
        cells: Cells,
        reasons: dict[int, str],
        interfaces: Interfaces,
        *,
        counts_new: bool,
        symbols: Symbols,
    ) -> None:
        self._cells = cells
        self._reasons = reasons
        self._interfaces = interfaces
        self._counts_new = counts_new
        self._symbols = symbols
        self._conntrack = ConntrackMeter()
        self._totals = cells.totals()
        self._fragments = FragmentMeter()
        self._foreign = ForeignXdp()
        self._scale = WindowScale()
        self._links = interfaces.look()
        self._softirq = parse_softirq(read_text("/proc/stat"))

    def read(self, seconds: float, *, one_in: float, windows: bool, unseen: int = 0) -> Interval:
        """Return everything exact about the interval since the last call.

        `unseen` are the packets that an interface received and XDP dropped, which no hook here saw.

        With `windows` the programs counted only at times: what they counted is scaled up to what the
        interfaces received.
        """
        now, before = self._cells.totals(), self._totals
        links, links_before = self._interfaces.look(), self._links
        self._totals, self._links = now, links
        counted = now.since(before)
        seen = counted.arrived_packets
        received, size = (grown(links, links_before, name) for name in ("packets", "bytes"))
        by_xdp = unseen > 0 or any(stats.native_xdp for stats in links.values())  # counts bytes its own way
        if windows:
            counted = self._scale.whole(counted, received - unseen, None if by_xdp else size)
        elif not by_xdp:
            self._scale.compare(counted, received, size)
        conntrack = self._conntrack.sample(seconds, counted.new_connections if self._counts_new else None)
        drops = self._kernel_drops(counted, conntrack)
        foreign = 0
        if windows or not any(stats.native_xdp for stats in links.values()):
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
            counted.reassembled + counted.refused, missing, drops, Sums(counted.fragments6, counted.whole6)
        )
        return Interval(replace(counters, drops=(*counters.drops, *waiting)), counted, seen, foreign)

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
        not_ip = counted.arrived[NON_IP]  # ARP and the like are delivered without passing the input hook
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
                for name, row in zip(CLASSES, counted.arrived, strict=True)
                if row[PACKETS]
            },
            drops=tuple(drops),
            conntrack=conntrack,
            records_lost=counted.lost,
            one_in=one_in,
            softirq_share=self._softirq_share(),
            watched=watched,
        )

    def _kernel_drops(self, counted: Totals, conntrack: ConntrackSample | None) -> list[DropCount]:
        found: list[DropCount] = []
        counts = counted.drops
        for outbound, number in zip(*np.nonzero(counts[..., PACKETS]), strict=True):
            reason = safe_text(self._reasons.get(int(number), f"reason {number}"))
            if reason in NOT_A_LOSS:
                continue
            layer, before_delivery = place(reason, outbound=bool(outbound))
            packets, size = counts[outbound, number].tolist()
            drop = DropCount(layer, reason, packets, size, before_delivery=before_delivery, code=int(number))
            if reason == _NETFILTER:
                found += split_conntrack(drop, conntrack)
            elif reason == _NOT_SPECIFIED and not outbound:
                found += split_sites(drop, counted.sites, self._symbols.names(list(counted.sites)))
            else:
                found.append(drop)
        return found

    def _softirq_share(self) -> float | None:
        now, before = parse_softirq(read_text("/proc/stat")), self._softirq
        self._softirq = now
        spent = now[1] - before[1]
        return (now[0] - before[0]) / spent if spent > 0 else None
