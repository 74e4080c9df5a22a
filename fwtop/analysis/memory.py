"""What judgement remembers between windows: what is normal, also for people, who probed, and connections.

The baseline is a rolling reservoir of packets from quiet times, and rates by traffic class. Collateral is
measured on the reservoir, and thresholds are multiples of the rates. It is stored per session and reused by
the next one of the same host (`to_bytes`).
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, fields, replace

from fwtop.analysis.clients import Clients
from fwtop.analysis.connections import ConnectionMemory
from fwtop.analysis.habits import Habits, Reading
from fwtop.analysis.window.traffic import ESP, GRE, ICMP, ICMP6, TCP, UDP, Rows, flow_key, shuffled
from fwtop.model.service import Service
from fwtop.model.traffic.packets import F64, U8, U32, U64, Fragment, Mask, PacketBatch
from fwtop.model.traffic.snapshot import ServiceUse
from fwtop.render.numbers import plural
from fwtop.stats.services import Doors

_FORMAT = 7
_LEARN_ROWS = 512  # new rows per tick, so that a busy tick doesn't fill the reservoir
MEMORY_SECONDS = 300.0  # time constant of the average rates
READY_SECONDS = 5.0
READY_ROWS = 30
CLASSES = (  # "tcp.lone": ACKs alone in their flow, as those of idle connections are
    *("tcp.syn", "tcp.syn_ack", "tcp.rst", "tcp.fin", "tcp.ack", "tcp.lone", "tcp.odd"),
    *("udp", "dns", "icmp", "fragment", "gre", "esp", "other", "not_ip"),
)
_NUMBER = {name: number for number, name in enumerate(CLASSES)}


class Baseline(Struct):
    """Packets and rates of normal traffic, at most `capacity` rows."""

    capacity: int = 8_192
    rows: PacketBatch = field(default_factory=PacketBatch.empty)
    seconds: float = 0.0  # of quiet traffic observed
    learned: int = 0  # rows added so far
    mean: dict[str, float] = field(default_factory=dict)
    square: dict[str, float] = field(default_factory=dict)
    clients: Clients = field(default_factory=Clients.of)  # of each service; learning replaces it
    habits: Habits = field(default_factory=Habits.of)  # of each service; replaced as well
    doors: Doors = field(default_factory=Doors.of)  # to services, as last told; replaced as well
    ceiling: dict[str, float] = field(default_factory=dict)  # what a class may teach until it is set anew

    def meet(self, services: Sequence[Service], now: float) -> None:
        """Take note of the services that are there."""
        if services:
            self.doors, moves = self.doors.told(services, now)
            self.clients, self.habits = self.clients.moved(moves), self.habits.moved(moves)

    def copy(self) -> Baseline:
        """Return a snapshot; learning replaces `rows` and never modifies them."""
        return replace(self, mean=dict(self.mean), square=dict(self.square), ceiling=dict(self.ceiling))

    @property
    def ready(self) -> bool:
        """Whether there is enough quiet traffic to measure harm."""
        return self.seconds >= READY_SECONDS and len(self.rows) >= READY_ROWS

    def rate(self, name: str) -> float | None:
        """Return the normal packets per second of a class; None if unknown.

        Mean plus two deviations, but at most its ceiling: a few bursts deviate by many times the mean.
        """
        if self.seconds < READY_SECONDS:
            return None
        mean = self.mean.get(name, 0.0)
        rate = mean + 2 * math.sqrt(max(0.0, self.square.get(name, 0.0) - mean * mean))
        return min(rate, self.ceiling.get(name, math.inf))

    def rate_of(self, rows: Mask) -> float | None:
        """Return the normal packets per second like these rows of the reservoir; None if unknown."""
        total = float(self.rows.weight.sum())
        if self.seconds < READY_SECONDS or total <= 0:
            return None
        return float(self.rows.weight[rows].sum()) / total * sum(self.mean.values())

    def rate_of_payloads(self, starts: Callable[[PacketBatch, Rows], Mask]) -> float | None:
        """Return the normal packets per second of TCP whose payload starts so; None if unknown."""
        rows = np.flatnonzero((self.rows.protocol == TCP) & (self.rows.payload_length > 0))
        like = np.zeros(len(self.rows), np.bool_)
        like[rows] = starts(self.rows, rows)
        return self.rate_of(like)

    def keep_rows(self, *batches: PacketBatch) -> None:
        """Add normal packets to the reservoir, replacing random older ones.

        That copies the whole reservoir, so several batches are best added together.
        """
        new = [self.bounded(batch) for batch in batches]
        over = len(self.rows) + sum(map(len, new)) - self.capacity
        rows = self.rows
        if over > 0:
            order = shuffled(len(rows), self.learned)
            rows = rows.select(np.sort(order[over:]))
        self.rows = PacketBatch.concat([rows, *new]) if len(rows) or len(new) > 1 else new[0]
        self.learned += sum(map(len, new))

    def bounded(self, packets: PacketBatch) -> PacketBatch:
        """Choose at random what the reservoir takes of a busy tick; weights make up for the others."""
        if len(packets) <= _LEARN_ROWS:
            return packets
        factor = len(packets) / _LEARN_ROWS
        chosen = shuffled(len(packets), self.learned)[:_LEARN_ROWS]
        packets = packets.select(chosen)
        packets.weight[:] *= factor
        return packets

    def renew(self, packets: PacketBatch, within: Mask) -> None:
        """Replace random rows `within` by as many packets, keeping the share of these rows.

        During an attack only some kinds of normal packets can be recognised: adding more of those would
        displace the others.
        """
        old = np.flatnonzero(within)
        count = min(len(packets), len(old), _LEARN_ROWS)
        if count == 0:
            return
        new = packets.select(np.sort(shuffled(len(packets), self.learned)[:count]))
        gone = old[shuffled(len(old), ~self.learned)[:count]]
        new.weight[:] = self.rows.weight[gone].mean()
        kept = np.ones(len(self.rows), np.bool_)
        kept[gone] = False
        self.rows = PacketBatch.concat([self.rows.select(kept), new])
        self.learned += count

    def keep_rates(self, rates: F64, seconds: float, above: Mask | None = None) -> None:
        """Add `seconds` of quiet traffic to the average rates, except those of classes `above` their ceiling.

        `rates` are those of `class_rates`.
        """
        if seconds <= 0:
            return
        blend = min(1.0, seconds / min(MEMORY_SECONDS, self.seconds + seconds))
        for number, (name, pps) in enumerate(zip(CLASSES, rates.tolist(), strict=True)):
            if above is not None and above[number]:
                continue
            self.mean[name] = self.mean.get(name, 0.0) * (1 - blend) + pps * blend
            self.square[name] = self.square.get(name, 0.0) * (1 - blend) + pps * pps * blend
        self.seconds += seconds

    def to_bytes(self) -> bytes:
        """Serialise (a NumPy archive without pickled objects)."""
        columns = {f"rows_{item.name}": getattr(self.rows, item.name) for item in fields(PacketBatch)}
        columns |= {f"clients_{name}": column for name, column in asdict(self.clients).items()}
        columns |= {f"habits_{name}": column for name, column in asdict(self.habits).items()}
        columns |= {f"doors_{name}": column for name, column in asdict(self.doors).items()}
        rates = np.array(
            [[self.mean.get(n, 0.0), self.square.get(n, 0.0), self.ceiling.get(n, np.inf)] for n in CLASSES]
        )
        header = np.array([_FORMAT, self.capacity, self.seconds, self.learned], np.float64)
        out = io.BytesIO()
        np.savez_compressed(out, header=header, rates=rates, **columns)
        return out.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Baseline:
        """Deserialise; raises ValueError on invalid data."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                header, rates = archive["header"], archive["rates"]
                columns = [archive[f"rows_{item.name}"] for item in fields(PacketBatch)]
                clients = Clients.of([archive[f"clients_{item.name}"] for item in fields(Clients)])
                habits = Habits.of([archive[f"habits_{item.name}"] for item in fields(Habits)])
                doors = Doors.of([archive[f"doors_{item.name}"] for item in fields(Doors)])
        except (KeyError, OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"not a stored baseline: {error}") from error
        wanted = PacketBatch.zeros(0, 0)
        types = [getattr(wanted, item.name).dtype for item in fields(PacketBatch)]
        good = [column.dtype for column in columns] == types and len(set(map(len, columns))) == 1
        if not good or len(header) != 4 or header[0] != _FORMAT or rates.shape != (len(CLASSES), 3):
            raise ValueError("not a stored baseline of this version")
        rows = PacketBatch(*columns)
        return Baseline(
            capacity=int(header[1]),
            rows=replace(rows, time_ns=np.full(len(rows), -1, np.int64)),  # of another session, and clock
            seconds=float(header[2]),
            learned=int(header[3]),
            mean=dict(zip(CLASSES, rates[:, 0].tolist(), strict=True)),
            square=dict(zip(CLASSES, rates[:, 1].tolist(), strict=True)),
            clients=clients,
            habits=habits,
            doors=doors,
            ceiling={n: c for n, c in zip(CLASSES, rates[:, 2].tolist(), strict=True) if c < math.inf},
        )


def class_rates(packets: PacketBatch, seconds: float) -> F64:
    """Return the packets per second of each of CLASSES; 0 in no time at all."""
    return rates_of(classes(packets), packets.weight, seconds)


def rates_of(kinds: U8, weight: F64, seconds: float) -> F64:
    """Return the packets per second of each of CLASSES from the classes of packets."""
    sums = np.bincount(kinds, weight, len(CLASSES))
    return sums / seconds if seconds > 0 else np.zeros(len(CLASSES))


def classes(packets: PacketBatch) -> U8:
    """Return the traffic class (index into CLASSES) of each packet."""
    result = np.full(len(packets), _NUMBER["other"], np.uint8)
    protocol, flags = packets.protocol, packets.tcp_flags & 63
    _, flow, counts = np.unique(flow_key(packets), return_inverse=True, return_counts=True)
    tcp, udp = protocol == TCP, protocol == UDP
    for name, mask in (  # the last that is true holds
        ("tcp.ack", tcp),
        ("tcp.lone", tcp & (counts[flow] == 1)),
        ("tcp.fin", tcp & ((flags & 1) != 0)),
        ("tcp.rst", tcp & ((flags & 4) != 0)),
        ("tcp.syn", tcp & ((flags & 18) == 2)),
        ("tcp.syn_ack", tcp & ((flags & 18) == 18)),
        ("tcp.odd", tcp & ((flags & 22) == 0)),
        ("udp", udp),
        ("dns", udp & (packets.dport == 53)),
        ("icmp", (protocol == ICMP) | (protocol == ICMP6)),
        ("gre", protocol == GRE),
        ("esp", protocol == ESP),
        ("fragment", packets.fragment == Fragment.LATER),
        ("not_ip", packets.family == 0),
    ):
        result[mask] = _NUMBER[name]
    return result


_SOURCES = 4_096  # remembered at once; the oldest are evicted, so spoofed sources cost no more
_PAIRS = 512  # remembered per source


class Probes(Struct):
    """The distinct (destination, port) pairs of a source, and when it was seen (seconds).

    The pairs are hashes of 4 bytes: a set of numbers would take 70 bytes for each, and a flood of all sources
    on all ports 150 MB.
    """

    last: float
    pairs: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))


class ScanMemory(Struct):
    """Bounded memory of probes, keyed by source hash."""

    sources: dict[int, Probes] = field(default_factory=dict)

    def add(self, source: int, pairs: U64, now: float) -> Probes:
        """Record the different pairs that a source probed, given as hashes; return all its probes."""
        known = self.sources.pop(source, None) or Probes(now)
        self.sources[source] = known  # at the end: ordered by time of last probe
        if len(known.pairs) < _PAIRS:
            new = pairs[:_PAIRS].astype(np.uint32)
            known.pairs = np.union1d(known.pairs, new)[:_PAIRS] if len(known.pairs) else new
        known.last = now
        return known

    def forget(self, before: float) -> None:
        """Forget sources last seen before a time, and the oldest beyond the limit."""
        for source in list(self.sources):
            if self.sources[source].last >= before and len(self.sources) <= _SOURCES:
                break
            del self.sources[source]


class Memory(Struct, frozen=True):
    """One per observation."""

    scans: ScanMemory = field(default_factory=ScanMemory)
    connections: ConnectionMemory = field(default_factory=ConnectionMemory)


_NOW_SECONDS = 60.0  # who was seen within them is a client of now


def normal_range(baseline: Baseline) -> tuple[float, float] | None:
    """Return the packets a second of nearly all calm moments, least and most; None if that isn't known.

    Two deviations beside the mean, as of classes that rise and fall together: that is wider than the truth.
    """
    if not baseline.ready:
        return None
    mean = sum(baseline.mean.values())
    deviation = sum(
        math.sqrt(max(0.0, square - baseline.mean[name] ** 2)) for name, square in baseline.square.items()
    )
    return max(mean - 2 * deviation, 0.0), mean + 2 * deviation


def learning_words(baseline: Baseline) -> str:
    """Say what learning waits for: time without an attack, or packets."""
    left = READY_SECONDS - baseline.seconds
    if left > 0:
        return f"learning what is normal: {plural(math.ceil(left), 'more quiet second')} needed"
    few = f"{len(baseline.rows):,} of {READY_ROWS} packets"
    return f"learning what is normal: {few}, waiting for more traffic"


def services_used(
    services: Sequence[Service], seen: Reading, baseline: Baseline, now: float
) -> tuple[ServiceUse, ...]:
    """Return what each service gets, those with most clients first."""
    found = [_used(service, seen, baseline, now) for service in services]
    return tuple(sorted(found, key=lambda one: (-one.clients, -one.long_known, -one.service.pps)))


def _used(service: Service, seen: Reading, baseline: Baseline, now: float) -> ServiceUse:
    number, habits, clients = baseline.doors.number_of(service), baseline.habits, baseline.clients
    mine = clients.service == number
    [row] = np.flatnonzero(habits.number == number)[:1].tolist() or [None]
    known = row is not None and habits.seconds[row] >= READY_SECONDS
    waits = habits.seconds[row] - habits.since[row] if row is not None else -math.inf
    return ServiceUse(
        service,
        tuple(seen.rates[seen.number == number].ravel().tolist()),
        tuple(habits.rates[row].tolist()) if known else (),
        float(habits.seconds[row]) if row is not None else 0.0,
        float(waits) if math.isfinite(waits) else None,
        clients=int((clients.last[mine] >= now - _NOW_SECONDS).sum()),
        long_known=int(clients.long_known[mine].sum()),
    )
