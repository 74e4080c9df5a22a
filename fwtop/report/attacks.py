"""Each attack: when it lasted, how strong it was, the evidence at its peak, and its own packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.dissect.client import LINK_ETHERNET, LINK_IP, Dissect, Dissection
from fwtop.model.traffic.session import (
    AttackEvidence,
    AttackTick,
    Event,
    EventKind,
    SamplePacket,
    SessionRecord,
)
from fwtop.model.traffic.snapshot import (
    Attack,
    Destination,
    PacketSignature,
    PartTraffic,
    Payload,
    Port,
    Snapshot,
    Source,
)
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.traffic import SOURCE_LISTS
from fwtop.report.sums import Row, stopped_share, timed

_DOUBTED = 0.2  # of the looks at an attack, above which its sources don't count as real
_MERGE_SECONDS = 10.0  # a pause shorter than this is the same attack


class AttackDetail(Struct, frozen=True):
    """What is known of one attack's packets; an attack with forged sources has no tables of sources."""

    looks: int = 0  # how often its packets were looked at
    tables: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    packets: tuple[SamplePacket, ...] = ()
    shown: SamplePacket | None = None
    dissection: Dissection = field(default_factory=Dissection)


class AttackSpan(Struct, frozen=True):
    """One attack from its beginning to its end; `ended` is None when the record ends first."""

    kind: str
    title: str
    began: float
    ended: float | None
    until: float  # `ended`, or the end of the record
    peak_pps: float
    peak_at: float
    share: float  # of all packets, at the peak
    confidence: float
    spoofed: bool
    evidence: tuple[str, ...]
    target: str = ""
    packets: float = 0.0
    stopped: float | None = None  # share of its packets that firewalls dropped; None: not known
    reached: float | None = None  # share that reached services
    points: tuple[tuple[float, float], ...] = ()  # time and packets a second
    detail: AttackDetail = field(default_factory=AttackDetail)
    uncertain: bool = False  # whether its sources are forged can't be told: nobody is accused

    @property
    def seconds(self) -> float:
        """How long it was on within the record."""
        return max(self.until - self.began, 0.0)


def attack_spans(
    record: SessionRecord, snapshots: Iterable[Snapshot], dissect: Dissect | None = None
) -> tuple[AttackSpan, ...]:
    """Find the spans of all attacks, in the order in which they began; `dissect` decodes a packet of each."""
    sightings = _sightings(snapshots)
    kinds = dict.fromkeys(event.subject for event in record.events if event.kind is EventKind.ATTACK_BEGAN)
    spans = [
        _detailed(record, _span_of(record, kind, time, sightings.get(kind, [])), dissect)
        for kind in kinds
        for time in _merged(_pairs(record.events, kind))
    ]
    return tuple(sorted(spans, key=lambda span: (span.began, -span.peak_pps)))


def _pairs(events: tuple[Event, ...], kind: str) -> list[tuple[float, float | None]]:
    pairs: list[tuple[float, float | None]] = []
    began: float | None = None
    for event in events:
        if event.subject != kind:
            continue
        if event.kind is EventKind.ATTACK_BEGAN and began is None:
            began = event.at
        elif event.kind is EventKind.ATTACK_ENDED and began is not None:
            pairs.append((began, event.at))
            began = None
    if began is not None:
        pairs.append((began, None))
    return pairs


def _merged(pairs: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    merged: list[tuple[float, float | None]] = []
    for began, ended in pairs:
        previous = merged[-1][1] if merged else None
        if previous is not None and began - previous <= _MERGE_SECONDS:
            merged[-1] = (merged[-1][0], ended)
        else:
            merged.append((began, ended))
    return merged


def _sightings(snapshots: Iterable[Snapshot]) -> dict[str, list[tuple[float, Attack]]]:
    found: dict[str, list[tuple[float, Attack]]] = {}
    for snapshot in snapshots:
        for attack in snapshot.judgement.attacks:
            found.setdefault(attack.kind, []).append((snapshot.at, attack))
    return found


def _span_of(
    record: SessionRecord, kind: str, time: tuple[float, float | None], sightings: list[tuple[float, Attack]]
) -> AttackSpan:
    began, ended = time
    last = record.ticks[-1].at if record.ticks else record.info.ended
    until = last if ended is None else ended
    span = AttackSpan(
        kind, kind.replace("_", " "), began, ended, until, 0.0, began, 0.0, 0.0, spoofed=False, evidence=()
    )
    shown = [attack for at, attack in sightings if began <= at <= until]
    if shown:
        best = max(shown, key=lambda attack: attack.pps)
        span = replace(
            span,
            title=best.title,
            peak_pps=best.pps,
            share=best.share,
            confidence=best.confidence,
            spoofed=best.spoofed,
            evidence=best.evidence,
            target=best.target,
            uncertain=not best.spoofed and _doubted(shown),
        )
    return _with_points(record, span)


def _doubted(shown: list[Attack]) -> bool:
    doubts = sum(attack.spoofed or attack.uncertain for attack in shown)
    return doubts > _DOUBTED * len(shown)


def _with_points(record: SessionRecord, span: AttackSpan) -> AttackSpan:
    """Add the time series: of one kind against several targets, their sum."""
    by_time: dict[float, list[AttackTick]] = {}
    for point in record.attacks:
        if point.kind == span.kind and span.began <= point.at <= span.until:
            by_time.setdefault(point.at, []).append(point)
    if not by_time:
        return span
    at, most = max(by_time.items(), key=lambda item: _peak(item[1]))
    widths = {tick.at: seconds for tick, seconds in timed(record.ticks, record.info.started)}
    whole = stopped = kernel = 0.0
    for moment, points in by_time.items():
        share = stopped_share(points)
        packets = sum(point.pps for point in points) * widths.get(moment, 0.0)
        whole, stopped = whole + packets, stopped + packets * share
        kernel += sum(point.pps * point.kernel_share for point in points) * widths.get(moment, 0.0)
    return replace(
        span,
        peak_pps=_peak(most),
        peak_at=at,
        share=min(sum(point.share for point in most), 1.0),
        confidence=max(point.confidence for point in most),
        packets=whole,
        stopped=stopped / whole if whole > 0 else None,
        reached=max(whole - stopped - kernel, 0.0) / whole if whole > 0 else None,
        points=tuple((moment, sum(point.pps for point in points)) for moment, points in by_time.items()),
    )


def _detailed(record: SessionRecord, span: AttackSpan, dissect: Dissect | None) -> AttackSpan:
    detail = attack_detail(record, span.kind, span.began, span.until, spoofed=span.spoofed, dissect=dissect)
    return replace(span, detail=detail)


def _peak(points: Iterable[AttackTick]) -> float:
    return sum(max(point.pps, point.peak_pps) for point in points)


_ROWS = 8
_LEAST = 0.005  # of an attack's packets: fewer have nothing in common but chance


def attack_detail(
    record: SessionRecord, kind: str, began: float, until: float, *, spoofed: bool, dissect: Dissect | None
) -> AttackDetail:
    """Sum up the evidence of an attack's time."""
    looks = [item for item in record.evidence if item.kind == kind and began <= item.at <= until]
    packets = tuple(item for item in record.packets if item.kind == kind and began - 10 <= item.at <= until)
    shown = max(packets, key=lambda packet: (not _is_later_fragment(packet), len(packet.data)), default=None)
    decoded = Dissection()
    if shown is not None and dissect is not None:
        decoded = dissect(shown.data, LINK_ETHERNET if shown.is_ethernet else LINK_IP)
    return AttackDetail(len(looks), _tables(looks, spoofed=spoofed), packets, shown, decoded)


def _is_later_fragment(packet: SamplePacket) -> bool:
    header = packet.data[14:] if packet.is_ethernet else packet.data
    return len(header) >= 20 and header[0] >> 4 == 4 and int.from_bytes(header[6:8], "big") & 0x1FFF != 0


def _tables(looks: list[AttackEvidence], *, spoofed: bool) -> dict[str, tuple[Row, ...]]:
    """Average the looks' rows by the attack's rate; forged senders are left out."""
    whole = sum(look.pps for look in looks)
    sums: dict[str, dict[str, Row]] = {}
    for look in looks:
        for name, row in _rows(look.part):
            if not (spoofed and name in SOURCE_LISTS):
                kept = sums.setdefault(name, {}).setdefault(row.key, row)
                kept.packets += row.share * look.pps
    tables = {}
    for name, rows in sums.items():
        if name == "prefix" and not any("/" in key for key in rows):
            continue  # they are the addresses once more
        for row in rows.values():
            row.share = min(row.packets / whole, 1.0) if whole > 0 else 0.0
        least = 0.0 if name in SOURCE_LISTS else _LEAST
        made = [row for row in rows.values() if row.share >= least]
        tables[name] = tuple(sorted(made, key=lambda row: -row.share)[:_ROWS])
    return tables


def _rows(part: PartTraffic) -> Iterator[tuple[str, Row]]:
    tables = part.tables
    for name in SOURCE_LISTS:
        for source in getattr(tables.sources, name):
            row = _row(source)
            detail = " · ".join(text for text in (row.detail, _who(source.who)) if text)
            yield name, replace(row, detail=detail)
    listed = ("target", tables.destinations), ("port", tables.ports), ("payload", part.payloads)
    for name, items in (*listed, ("signature", part.signatures)):
        yield from ((name, _row(item)) for item in items)


def _row(item: Source | Destination | Port | Payload | PacketSignature) -> Row:
    key, detail = ROW_TYPES[type(item)].named(item)
    return Row(key, detail, share=item.share.share, hex=item.data.hex() if isinstance(item, Payload) else "")


def _who(who: str) -> str:
    return "" if who in ("", "attack") else who
