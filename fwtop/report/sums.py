"""A session in sums: totals, peaks, how protected it was, and tables over its snapshots."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct, field

from fwtop.model.traffic.session import (
    FULL_TABLE,
    NOTICED,
    STOPPED,
    AttackTick,
    EventKind,
    SessionRecord,
    Tick,
)
from fwtop.model.traffic.snapshot import Payload, Snapshot
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.field import Field
from fwtop.render.rows.traffic import SOURCE_LISTS

_MAX_TICK_SECONDS = 60.0  # a longer gap was not observed
_MAX_WINDOW_SECONDS = 10.0  # of a live snapshot

TimedTick = tuple[Tick, float]


def timed(ticks: Sequence[Tick], started: float) -> tuple[TimedTick, ...]:
    """Return each tick with the seconds that it speaks for: its rates are those of the time before it."""
    times = [started, *(tick.at for tick in ticks)]
    gaps = [min(max(after - before, 0.0), _MAX_TICK_SECONDS) for before, after in pairwise(times)]
    return tuple(
        (tick, gap if tick.seconds is None else tick.seconds) for tick, gap in zip(ticks, gaps, strict=True)
    )


def resample(ticks: Sequence[Tick], columns: int) -> list[Tick]:
    """Return at most `columns` ticks: the one with the most packets of each interval, so peaks remain."""
    if len(ticks) <= columns:
        return list(ticks)
    first, last = ticks[0].at, ticks[-1].at
    width = max((last - first) / columns, 1e-9)
    best: dict[int, Tick] = {}
    for tick in ticks:
        slot = min(int((tick.at - first) / width), columns - 1)
        if slot not in best or tick.pps > best[slot].pps:
            best[slot] = tick
    return [best[slot] for slot in sorted(best)]


PacketsOf = dict[tuple[int, float], float]  # by incident and time of a point: for which it speaks


def attack_packets(record: SessionRecord, snapshots: Sequence[Snapshot]) -> PacketsOf:
    """Count the packets of each attack, so that what its first and last windows hold counts in full.

    A point's rate is the mean of a window that is longer than the time to the point before: added up over
    these times, the packets before an attack was named, and the last ones, would count in part only.
    """
    windows = [(one.at, min(one.seconds, _MAX_WINDOW_SECONDS)) for one in snapshots]
    begins = [at for at, _ in windows]
    rolled_up = {tick.at for tick in record.ticks if tick.seconds is not None}
    gaps = {tick.at: gap for tick, gap in timed(record.ticks, record.info.started)}
    began = {one.incident: one.at for one in record.events if one.kind is EventKind.ATTACK_BEGAN}
    before = {tick.at: former.at for former, tick in pairwise(record.ticks)}
    sums: dict[int, list[tuple[float, float]]] = {}  # by incident: packets up to a time
    found: PacketsOf = {}
    for point in record.attacks:
        gap = gaps.get(point.at, 0.0)
        nearest = min(bisect_left(begins, point.at), len(windows) - 1)
        window = windows[nearest][1] if windows and point.at not in rolled_up else gap
        known = sums.setdefault(point.incident, [(began.get(point.incident, point.at - gap), 0.0)])
        former, sofar = known[-1]
        if former == before.get(point.at):  # it was on: what no window holds went by at the same rate
            window = max(window, gap)
        elif former < point.at - gap:  # it paused
            known.append((point.at - gap, sofar))
        known.append((point.at, _interpolated(known, point.at - window) + point.pps * window))
        key = point.incident, point.at
        found[key] = found.get(key, 0.0) + point.pps * gap
    spoken: dict[int, float] = {}
    for (incident, _), packets in found.items():
        spoken[incident] = spoken.get(incident, 0.0) + packets
    return {key: packets / spoken[key[0]] * sums[key[0]][-1][1] for key, packets in found.items() if packets}


def _interpolated(known: Sequence[tuple[float, float]], at: float) -> float:
    """Return the packets up to a time, between or beside the times of which they are known."""
    place = bisect_left(known, (at, 0.0))
    if place in (0, len(known)):
        return known[min(place, len(known) - 1)][1]
    (since, low), (until, high) = known[place - 1 : place + 1]
    return low + (high - low) * (at - since) / max(until - since, 1e-9)


class Protection(Struct, frozen=True):
    """How long attacks were on, and for how long firewalls stopped which part of their packets.

    What became of attacks' packets is an estimate from samples.
    """

    attacked: float = 0.0  # seconds
    unprotected: float = 0.0  # of these, with less than 5 % of the packets stopped
    partly: float = 0.0
    protected: float = 0.0  # at least 95 %
    kernel_alone: float = 0.0  # of a part, and the kernel the rest: nothing reached services
    packets: float = 0.0  # of all attacks
    mine: float = 0.0  # of these, dropped by fwtop's rules
    other: float = 0.0
    kernel: float = 0.0
    reached: float = 0.0  # accepted: they reached services
    at_end: float | None = None  # share stopped in the last tick; None: no attack then
    attacked_at_end: bool = False
    stopped_after: float | None = None  # seconds of attack, without calm, until all was stopped and stayed so


def protection_of(record: SessionRecord, counted: PacketsOf) -> Protection:
    """Judge all ticks with attacks, whose packets are `counted`."""
    by_time: dict[float, list[AttackTick]] = {}
    for point in record.attacks:
        if point.kind != FULL_TABLE:
            by_time.setdefault(point.at, []).append(point)
    sums = dict.fromkeys(("unprotected", "partly", "protected", "kernel_alone"), 0.0)
    packets = dict.fromkeys(("packets", "mine", "other", "kernel"), 0.0)
    attacked, stopped_after = 0.0, None
    for tick, seconds in timed(record.ticks, record.info.started):
        points = by_time.get(tick.at)
        if not points:
            continue
        state = _state(points)
        sums[state] += seconds
        if state != "protected":
            stopped_after = None  # not for good
        elif stopped_after is None:
            stopped_after = attacked
        attacked += seconds
        for point in points:
            own = counted.get((point.incident, point.at), 0.0)
            packets["packets"] += own
            for name in ("mine", "other", "kernel"):
                packets[name] += own * getattr(point, f"{name}_share")
    last = by_time.get(record.ticks[-1].at, []) if record.ticks else []
    known = stopped_share(last) if last else None
    return Protection(
        attacked=attacked,
        **sums,
        **packets,
        reached=max(packets["packets"] - packets["mine"] - packets["other"] - packets["kernel"], 0.0),
        at_end=known,
        attacked_at_end=bool(last),
        stopped_after=stopped_after,
    )


def stopped_share(points: Iterable[AttackTick]) -> float:
    """Return the share of the attacks' packets that firewalls dropped."""
    whole = stopped = 0.0
    for point in points:
        whole += point.pps
        stopped += point.pps * min(point.mine_share + point.other_share, 1.0)
    return min(stopped / whole, 1.0) if whole > 0 else 0.0


def _state(points: Sequence[AttackTick]) -> str:
    share = stopped_share(points)
    if share >= STOPPED:
        return "protected"
    whole = sum(point.pps for point in points)
    if whole and share + sum(point.pps * point.kernel_share for point in points) / whole >= STOPPED:
        return "kernel_alone"
    return "partly" if share >= NOTICED else "unprotected"


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


ROWS = 15
LEDGER_ROWS = 60  # every rule that dropped anything has a row of its own
_MAX_GAP_SECONDS = 600.0  # a snapshot stands for the time until the next one, at most this long
_MAX_KEYS = 20_000  # per table while summing: forged sources differ in every snapshot


class Row(Struct):
    """One line of a table, summed over time; `share` is of all packets then, or of an attack's."""

    key: str
    detail: str = ""
    packets: float = 0.0
    share: float = 0.0
    peak_pps: float = 0.0
    hex: str = ""
    sums: dict[Field, float] = field(default_factory=dict)  # of what is averaged, over its packets

    def about(self, digits: int) -> str:
        """Return what is known besides the key, with so many hexadecimal digits."""
        return " · ".join(part for part in (self.detail, self.hex[:digits]) if part)

    def averages(self) -> dict[Field, float]:
        """Return what is averaged."""
        return {
            measure: total / self.packets if self.packets else 0.0 for measure, total in self.sums.items()
        }


class Tops(Struct):
    """Tables by name; sums are lower bounds, because a snapshot lists only its largest entries."""

    seconds: float = 0.0
    packets: float = 0.0
    snapshots: int = 0
    during_attack: bool = False
    forged: tuple[str, ...] = ()  # titles of attacks whose sources are forged
    tables: dict[str, list[Row]] = field(default_factory=dict)


def sum_tables(snapshots: list[Snapshot]) -> Tops:
    """Sum over the snapshots that show an attack, or over all when none does."""
    attacked = any(snapshot.judgement.harmful for snapshot in snapshots)
    tops = Tops(during_attack=attacked)
    tables: dict[str, dict[str, Row]] = {}
    for snapshot, seconds in zip(snapshots, _spans(snapshots), strict=True):
        if attacked and not snapshot.judgement.harmful:
            continue
        tops.seconds += seconds
        tops.packets += snapshot.tables.totals.pps * seconds
        tops.snapshots += 1
        titles = [attack.title for attack in snapshot.judgement.attacks if attack.spoofed]
        tops.forged = tuple(dict.fromkeys((*tops.forged, *titles)))
        for name, rows in _tables(snapshot):
            table = tables.setdefault(name, {})
            for row, pps, averaged in rows:
                _add(table, row, pps, seconds, averaged)
    for name, table in tables.items():
        limit = LEDGER_ROWS if name == "ledger" else ROWS
        best = sorted(table.values(), key=lambda row: row.packets, reverse=True)[:limit]
        for row in best:
            row.share = row.packets / tops.packets if tops.packets else 0.0
        tops.tables[name] = best
    return tops


def _spans(snapshots: list[Snapshot]) -> list[float]:
    ends = [snapshot.at for snapshot in snapshots]
    gaps = [min(max(after - before, 0.0), _MAX_GAP_SECONDS) for before, after in pairwise(ends)]
    last = gaps[-1] if gaps else snapshots[0].seconds if snapshots else 0.0
    return [*gaps, last][: len(snapshots)]


def _add(table: dict[str, Row], row: Row, pps: float, seconds: float, averaged: dict[Field, float]) -> None:
    kept = table.get(row.key)
    if kept is None:
        if len(table) >= _MAX_KEYS:
            return
        kept = table[row.key] = row
    kept.packets += pps * seconds
    for measure, value in averaged.items():
        kept.sums[measure] = kept.sums.get(measure, 0.0) + pps * seconds * value
    kept.peak_pps = max(kept.peak_pps, pps)


_Measured = tuple[Row, float, dict[Field, float]]  # with packets a second, and what is averaged


def _tables(snapshot: Snapshot) -> Iterator[tuple[str, Iterable[_Measured]]]:
    tables = snapshot.tables
    for name in SOURCE_LISTS:
        yield name, map(_measured, getattr(tables.sources, name))
    yield "port", map(_measured, tables.ports)
    yield "payload", map(_measured, snapshot.judgement.payloads or tables.payloads)
    yield "protocol", ((Row(name), share.pps, {}) for name, share in tables.protocols.items())
    yield "ledger", map(_measured, tables.ledger)


def _measured(item: Struct) -> _Measured:
    kind = ROW_TYPES[type(item)]
    key, detail = kind.named(item)
    row = Row(key, detail, hex=item.data.hex() if isinstance(item, Payload) else "")
    return (
        row,
        kind.field("pps").of(item),
        {measure: measure.of(item) for measure in kind.fields if measure.averaged},
    )
