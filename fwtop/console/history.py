"""Samples for the history from snapshots: averages, weighted by the time since the last one."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.enrich.cities import CityLookup
from fwtop.model.traffic.flow import flow_of
from fwtop.model.traffic.history import HistoryPart, HistorySample
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.snapshot import Snapshot

_MOST_SECONDS = 5.0  # that a snapshot speaks for, unless its window is longer
_CITY_SECONDS = 5.0  # between two looks at the cities
_MOST_PARTS = 40  # of each kind


class HistorySampler:
    """Turns the snapshots of one observation into samples that don't overlap, as their windows do."""

    def __init__(self, cities: CityLookup | None = None) -> None:
        self._cities = cities
        self._last = float("-inf")
        self._cities_last = float("-inf")

    def sample(self, snapshot: Snapshot, arrived: PacketBatch | None) -> HistorySample | None:
        """Return the seconds since the last snapshot; `arrived` are the window's sampled packets."""
        at = snapshot.at
        flow = flow_of(snapshot)
        # A clock that was set back begins anew.
        gap = at - self._last if at >= self._last else snapshot.seconds
        seconds = min(gap, max(snapshot.seconds, _MOST_SECONDS))
        self._last = at
        if flow is None or seconds <= 0:
            return None
        rates = (flow.arrives, flow.mine, flow.other, flow.kernel, flow.reaches)
        parts = [*_parts(snapshot, seconds), *self._city_parts(at, flow.arrives, arrived)]
        traffic = tuple(rate * seconds for rate in rates)
        return HistorySample(at, seconds, traffic, flow.bps * seconds, tuple(parts))

    def _city_parts(self, at: float, pps: float, arrived: PacketBatch | None) -> Iterator[HistoryPart]:
        if self._cities is None or arrived is None or 0 <= at - self._cities_last < _CITY_SECONDS:
            return
        seconds = min(abs(at - self._cities_last), 2 * _CITY_SECONDS)
        self._cities_last = at
        for name, share in self._cities.shares(arrived, _MOST_PARTS):
            yield HistoryPart("city", name, share * pps * seconds)


def _parts(snapshot: Snapshot, seconds: float) -> Iterator[HistoryPart]:
    tables = snapshot.tables
    sources = (("country", tables.sources.country), ("network", tables.sources.asn))
    for kind, rows in sources:
        for source in rows[:_MOST_PARTS]:
            packets = source.share.pps * seconds
            label = (source.as_name or "") if kind == "network" else ""
            yield HistoryPart(kind, source.key, packets, packets * source.dropped_share, label)
    for port in [port for port in tables.ports if port.side == "dst"][:_MOST_PARTS]:
        key = f"{port.protocol}/{port.port}"
        yield HistoryPart("port", key, port.share.pps * seconds, None, port.service or "")
    for target in tables.destinations[:_MOST_PARTS]:
        packets = target.share.pps * seconds
        yield HistoryPart("target", target.key, packets, packets * target.dropped_share)
