"""What the history gets of an observation: seconds that don't overlap, and their parts, each counted once.

The parts that went to service addresses, and those to dark ones, are counted for themselves. Dark is an
address of ours from which nothing ever answered, as long as the history remembers; a rule that drops all that
a service gets makes it no darker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from fwtop.enrich.geoip import CityLookup
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic import session
from fwtop.model.traffic.packets import Fragment, Mask, NoOrigin, OriginLookup, PacketBatch, Window
from fwtop.model.traffic.protocols import NAMES, TCP, UDP
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.stats.destinations import SERVICES
from fwtop.stats.services import address_numbers, answering
from fwtop.stats.sources import country_text

_MOST_SECONDS = 5.0  # that a snapshot speaks for, unless its window is longer
_PARTS_SECONDS = 5.0  # between two looks at cities, and at what goes where
_MOST_PARTS = 40  # of each kind
_MOST_PACKETS = 4_096  # of a window: the share of a part needs no more
_SETTLE_SECONDS = 20.0  # that it takes to hear who answers, where no history tells
_AGAIN_SECONDS = 3_600.0  # after which all that answered is stored again


class Answered:
    """Addresses of ours that ever answered ("192.0.2.1"), and ports ("tcp/80"). Bounded."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = set(keys)
        self._began = float("-inf") if self._keys else None
        self._numbers = self._hashed()
        self._due = float("-inf")

    def note(self, at: float, places: Collection[tuple[str, str, int]]) -> tuple[str, ...]:
        """Add protocol, address and port of who answers; return what is to be stored of all that is known."""
        found = {address for _, address, _ in places}
        found |= {f"{protocol}/{port}" for protocol, _, port in places if protocol}
        new = sorted(found - self._keys)[: max(session.ANSWERS - len(self._keys), 0)]
        if new:
            self._keys.update(new)
            self._numbers = self._hashed()
        if not new and 0 <= at - self._due < _AGAIN_SECONDS:
            return ()
        self._due = at
        return tuple(sorted(self._keys))

    def settled(self, at: float) -> bool:
        """Whether an address that didn't answer so far is dark: not right after the first start."""
        self._began = at if self._began is None else self._began
        return at - self._began >= _SETTLE_SECONDS

    def service(self, batch: PacketBatch) -> Mask:
        """Tell the packets to addresses that answered."""
        return np.isin(address_numbers(batch.dst_hi, batch.dst_lo), self._numbers)

    def _hashed(self) -> np.ndarray:
        known = [Prefix.parse(key) for key in self._keys if "/" not in key]
        halves = (np.array([getattr(one, half) for one in known], np.uint64) for half in ("hi", "lo"))
        return address_numbers(*halves)


class HistorySampler:
    """Turns the snapshots of one observation into samples that don't overlap, as their windows do."""

    def __init__(
        self,
        lookup: OriginLookup | None = None,
        cities: CityLookup | None = None,
        answered: Iterable[str] = (),
    ) -> None:
        """`answered` is what the history knows from earlier sessions."""
        self._lookup = lookup or NoOrigin()
        self._cities = cities
        self._answered = Answered(answered)
        self._last = float("-inf")
        self._looked = float("-inf")
        self._packets = 0.0  # that arrived since

    def sample(self, snapshot: Snapshot, window: Window | None) -> session.HistorySample | None:
        """Return the seconds since the last snapshot; `window` holds its sampled packets."""
        at = snapshot.at
        flow = session.flow_of(snapshot)
        # A clock that was set back begins anew.
        gap = at - self._last if at >= self._last else snapshot.seconds
        seconds = min(gap, max(snapshot.seconds, _MOST_SECONDS))
        self._last = at
        if flow is None or seconds <= 0:
            return None
        rates = (flow.arrives, flow.mine, flow.other, flow.kernel, flow.reaches)
        parts = [*_parts(snapshot, seconds)]
        told = (
            session.forged_share(snapshot) < session.NOTICED
        )  # else where packets seem to come from is no fact
        if told:
            parts += _origins(snapshot, seconds)
        answered: tuple[str, ...] = ()
        self._packets += flow.arrives * seconds
        if window is not None and not 0 <= at - self._looked < _PARTS_SECONDS:
            answered = self._answered.note(at, _answering(snapshot, window))
            settled = self._answered.settled(at)
            parts += self._by_place(window.arrived, self._packets, told=told, settled=settled)
            self._looked, self._packets = at, 0.0
        traffic = tuple(rate * seconds for rate in rates)
        return session.HistorySample(at, seconds, traffic, flow.bps * seconds, tuple(parts), answered)

    def _by_place(
        self, arrived: PacketBatch, packets: float, *, told: bool, settled: bool
    ) -> Iterator[session.HistoryPart]:
        """Yield the cities of all, and all parts of what went to service addresses and to dark ones."""
        if len(arrived) > _MOST_PACKETS:
            arrived = arrived.select(np.linspace(0, len(arrived) - 1, _MOST_PACKETS).astype(np.intp))
        whole = float(arrived.weight.sum())
        if whole <= 0:
            return
        each = packets / whole  # packets for a unit of weight
        if told:
            yield from self._city_parts("", arrived, each)
        service = self._answered.service(arrived)
        for place, chosen in zip(session.PLACES, (service, ~service), strict=True):
            part = arrived.select(chosen & (arrived.family != 0))
            if not len(part) or not settled:
                continue
            yield session.HistoryPart("place", place, float(part.weight.sum()) * each)
            yield from _port_parts(place, part, each)
            if told:
                yield from self._origin_parts(place, part, each)
                yield from self._city_parts(f"{place} ", part, each)

    def _city_parts(self, place: str, part: PacketBatch, each: float) -> Iterator[session.HistoryPart]:
        weight = float(part.weight.sum())
        for name, share in self._cities.shares(part, _MOST_PARTS) if self._cities is not None else ():
            yield session.HistoryPart(f"{place}city", name, share * weight * each)

    def _origin_parts(self, place: str, part: PacketBatch, each: float) -> Iterator[session.HistoryPart]:
        origin = self._lookup.columns(part.family, part.src_hi, part.src_lo)
        for number, weight in _largest(origin.country, part):
            yield session.HistoryPart(f"{place} country", country_text(number) or "", weight * each)
        for number, weight in _largest(origin.asn, part):
            label = self._lookup.as_name(number) or ""
            yield session.HistoryPart(f"{place} network", f"AS{number}", weight * each, label=label)


def _answering(snapshot: Snapshot, window: Window) -> set[tuple[str, str, int]]:
    """Return who answers, of this host and of those behind it."""
    found = answering(window)
    for target in snapshot.tables.destinations:
        for service in target.serves:
            protocol, _, port = service.partition("/")
            found.add((protocol, target.key, int(port)))
    return found


def _largest(numbers: np.ndarray, part: PacketBatch) -> Iterator[tuple[int, float]]:
    """Yield the numbers that most packets have, 0 left out, with the sum of their weights."""
    found, place = np.unique(numbers, return_inverse=True)
    sums = np.bincount(place, weights=part.weight, minlength=len(found))
    for row in np.argsort(-sums, kind="stable")[:_MOST_PARTS].tolist():
        if found[row]:
            yield int(found[row]), float(sums[row])


def _port_parts(place: str, part: PacketBatch, each: float) -> Iterator[session.HistoryPart]:
    with_ports = (part.protocol == TCP) | (part.protocol == UDP)
    part = part.select(with_ports & (part.fragment != Fragment.LATER))
    numbers = part.protocol.astype(np.uint32) << np.uint32(16) | part.dport
    for number, weight in _largest(numbers, part):
        protocol, port = NAMES[number >> 16], number & 0xFFFF
        label = SERVICES.get((protocol, port), "")
        yield session.HistoryPart(f"{place} port", f"{protocol}/{port}", weight * each, label=label)


def _origins(snapshot: Snapshot, seconds: float) -> Iterator[session.HistoryPart]:
    sources = snapshot.tables.sources
    for kind, rows in (("country", sources.country), ("network", sources.asn)):
        for source in rows[:_MOST_PARTS]:
            packets = source.share.pps * seconds
            label = (source.as_name or "") if kind == "network" else ""
            yield session.HistoryPart(kind, source.key, packets, packets * source.dropped_share, label)


def _parts(snapshot: Snapshot, seconds: float) -> Iterator[session.HistoryPart]:
    tables = snapshot.tables
    for port in [port for port in tables.ports if port.side == "dst"][:_MOST_PARTS]:
        key = f"{port.protocol}/{port.port}"
        yield session.HistoryPart("port", key, port.share.pps * seconds, None, port.service or "")
    for target in tables.destinations[:_MOST_PARTS]:
        packets = target.share.pps * seconds
        yield session.HistoryPart("target", target.key, packets, packets * target.dropped_share)
