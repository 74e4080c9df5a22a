"""Totals and peaks of a session; packets are rates times the time that they were measured for."""

from __future__ import annotations

from msgspec import Struct

from fwtop.model.traffic.session import Tick
from fwtop.report.facts.periods import TimedTick


class Sums(Struct, frozen=True):
    """Totals and peaks of the session; packets are rates times their duration."""

    packets: float
    bytes: float
    dropped: float
    accepted: float
    peak_pps: float
    peak_bps: float
    peak_at: float
    lost: int
    one_in_max: float
    conntrack_peak: int | None
    conntrack_max: int | None
    conntrack_new_peak: float
    softirq_peak: float | None
    mine: float  # packets dropped by fwtop's rules
    other: float
    kernel: float


def sums_of(timed_ticks: tuple[TimedTick, ...]) -> Sums:
    """Sum up all ticks."""
    ticks = [tick for tick, _ in timed_ticks]
    peak = max(ticks, key=_peak, default=None)
    tables = [tick for tick in ticks if tick.conntrack is not None]
    fullest = max(tables, key=lambda tick: tick.conntrack or 0, default=None)
    softirq = [tick.softirq_share for tick in ticks if tick.softirq_share is not None]
    return Sums(
        packets=sum(tick.pps * gap for tick, gap in timed_ticks),
        bytes=sum(tick.bps / 8 * gap for tick, gap in timed_ticks),
        dropped=sum(tick.dropped_pps * gap for tick, gap in timed_ticks),
        accepted=sum(tick.accepted_pps * gap for tick, gap in timed_ticks),
        peak_pps=_peak(peak) if peak else 0.0,
        peak_bps=max((max(tick.bps, tick.peak_bps) for tick in ticks), default=0.0),
        peak_at=peak.at if peak else 0.0,
        lost=round(sum(tick.lost_per_s * gap for tick, gap in timed_ticks)),
        one_in_max=max((tick.one_in for tick in ticks), default=1.0),
        conntrack_peak=fullest.conntrack if fullest else None,
        conntrack_max=fullest.conntrack_max if fullest else None,
        conntrack_new_peak=max((tick.conntrack_new_per_s or 0.0 for tick in tables), default=0.0),
        softirq_peak=max(softirq, default=None),
        mine=sum(tick.mine_pps * gap for tick, gap in timed_ticks),
        other=sum(tick.other_pps * gap for tick, gap in timed_ticks),
        kernel=sum(tick.kernel_pps * gap for tick, gap in timed_ticks),
    )


def _peak(tick: Tick) -> float:
    return max(tick.pps, tick.peak_pps)
