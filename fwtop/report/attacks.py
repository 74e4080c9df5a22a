"""Each attack: when it lasted, how strong it was, the evidence at its peak, and its own packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.dissect.client import LINK_ETHERNET, LINK_IP, Dissect, Dissection
from fwtop.model.traffic import session
from fwtop.model.traffic.snapshot import (
    Destination,
    PacketSignature,
    PartTraffic,
    Payload,
    Port,
    Snapshot,
    Source,
)
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.defence import holding
from fwtop.render.rows.traffic import SOURCE_LISTS
from fwtop.report.sums import PacketsOf, Row, stopped_share

_DOUBTED = 0.2  # of the looks at an attack, above which its sources don't count as real


class AttackDetail(Struct, frozen=True):
    """What is known of one attack's packets; an attack with forged sources has no tables of sources."""

    looks: int = 0  # how often its packets were looked at
    tables: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    shown: session.SamplePacket | None = None
    dissection: Dissection = field(default_factory=Dissection)


class AttackSpan(Struct):
    """One attack from its beginning to its end; `ended` is None when the record ends first."""

    kind: str
    title: str
    began: float
    ended: float | None
    until: float  # `ended`, or the end of the record
    peak_pps: float = 0.0
    peak_at: float = 0.0
    share: float = 0.0  # of all packets, at the peak
    confidence: float = 0.0
    spoofed: bool = False
    uncertain: bool = False  # whether its sources are forged can't be told: nobody is accused
    evidence: tuple[str, ...] = ()
    target: str = ""
    packets: float = 0.0
    stopped: float | None = None  # share of its packets that firewalls dropped; None: not known
    reached: float | None = None  # share that reached services
    points: tuple[tuple[float, float], ...] = ()  # time and packets a second
    detail: AttackDetail = field(default_factory=AttackDetail)
    incident: int = 0  # its id
    letter: str = ""
    holding: str = ""  # of a slow attack, how many connections it held at its height, in words

    @property
    def seconds(self) -> float:
        """How long it was on within the record."""
        return max(self.until - self.began, 0.0)


def attack_spans(
    record: session.SessionRecord,
    snapshots: Sequence[Snapshot],
    counted: PacketsOf,
    dissect: Dissect | None = None,
) -> tuple[AttackSpan, ...]:
    """Find the spans of all attacks, in the order in which they began; `dissect` decodes a packet of each."""
    spans = [
        _span_of(record, event, snapshots, counted, dissect)
        for event in record.events
        if event.kind is session.EventKind.ATTACK_BEGAN
    ]
    return tuple(sorted(spans, key=lambda span: (span.began, -span.peak_pps)))


def _span_of(
    record: session.SessionRecord,
    event: session.Event,
    snapshots: Sequence[Snapshot],
    counted: PacketsOf,
    dissect: Dissect | None,
) -> AttackSpan:
    last = record.ticks[-1].at if record.ticks else record.info.ended
    kind, began, number = event.subject, event.at, event.incident
    ends = (one for one in record.events if one.kind is session.EventKind.ATTACK_ENDED)
    ended = max((one.at for one in ends if one.incident == number), default=None)
    until = last if ended is None else ended
    span = AttackSpan(kind, kind.replace("_", " "), began, ended, until, peak_at=began, incident=number)
    shown = [attack for one in snapshots if (attack := one.judgement.incident(number)) is not None]
    if shown:
        best = max(shown, key=lambda attack: (attack.holds, attack.pps))
        span.holding = holding(replace(best, paused=None, ended=began))
        span.kind, span.letter = best.kind, best.letter
        span.title, span.peak_pps, span.share, span.confidence = (
            best.title, best.pps, best.share, best.confidence,
        )  # fmt: skip
        span.spoofed, span.evidence, span.target = best.spoofed, best.evidence, best.target
        doubts = sum(attack.spoofed or attack.uncertain for attack in shown)
        span.uncertain = not best.spoofed and doubts > _DOUBTED * len(shown)
    _add_points(record, span, counted)
    span.detail = attack_detail(record, number, spoofed=span.spoofed, dissect=dissect)
    return span


def _add_points(record: session.SessionRecord, span: AttackSpan, counted: PacketsOf) -> None:
    by_time: dict[float, list[session.AttackTick]] = {}
    for point in record.attacks:
        if point.incident == span.incident:
            by_time.setdefault(point.at, []).append(point)
    if not by_time:
        return
    span.peak_at, most = max(by_time.items(), key=lambda item: _peak(item[1]))
    span.peak_pps = _peak(most)
    span.share = min(sum(point.share for point in most), 1.0)
    span.confidence = max(point.confidence for point in most)
    span.points = tuple((at, sum(point.pps for point in points)) for at, points in by_time.items())
    stopped = kernel = 0.0
    for (at, pps), points in zip(span.points, by_time.values(), strict=True):
        own = counted.get((span.incident, at), 0.0)
        span.packets += own
        stopped += own * stopped_share(points)
        kernel += own * sum(point.pps * point.kernel_share for point in points) / pps if pps else 0.0
    if span.packets > 0:
        span.stopped = stopped / span.packets
        span.reached = max(span.packets - stopped - kernel, 0.0) / span.packets


def _peak(points: Iterable[session.AttackTick]) -> float:
    return sum(max(point.pps, point.peak_pps) for point in points)


_ROWS = 8
_LEAST = 0.005  # of an attack's packets: fewer have nothing in common but chance


def attack_detail(
    record: session.SessionRecord, incident: int, *, spoofed: bool, dissect: Dissect | None
) -> AttackDetail:
    """Sum up the evidence of an attack."""
    looks = [item for item in record.evidence if item.incident == incident]
    packets = (item for item in record.packets if item.incident == incident)
    shown = max(packets, key=lambda packet: (not _is_later_fragment(packet), len(packet.data)), default=None)
    decoded = Dissection()
    if shown is not None and dissect is not None:
        decoded = dissect(shown.data, LINK_ETHERNET if shown.is_ethernet else LINK_IP)
    return AttackDetail(len(looks), _tables(looks, spoofed=spoofed), shown, decoded)


def _is_later_fragment(packet: session.SamplePacket) -> bool:
    header = packet.data[14:] if packet.is_ethernet else packet.data
    return len(header) >= 20 and header[0] >> 4 == 4 and int.from_bytes(header[6:8], "big") & 0x1FFF != 0


def _tables(looks: list[session.AttackEvidence], *, spoofed: bool) -> dict[str, tuple[Row, ...]]:
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
            who = "" if source.who == "attack" else source.who
            detail = " · ".join(text for text in (row.detail, who) if text)
            yield name, replace(row, detail=detail)
    listed = ("target", tables.destinations), ("port", tables.ports), ("payload", part.payloads)
    for name, items in (*listed, ("signature", part.signatures)):
        yield from ((name, _row(item)) for item in items)


def _row(item: Source | Destination | Port | Payload | PacketSignature) -> Row:
    key, detail = ROW_TYPES[type(item)].named(item)
    return Row(key, detail, share=item.share.share, hex=item.data.hex() if isinstance(item, Payload) else "")
