"""An attack's own packets: tables over its time, and one packet of it decoded."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.dissect.wire import LINK_ETHERNET, LINK_IP, Dissect, Dissection
from fwtop.model.traffic.session import AttackEvidence, SamplePacket, SessionRecord
from fwtop.model.traffic.snapshot import Destination, PacketSignature, PartTraffic, Payload, Port, Source
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.source import SOURCE_LISTS
from fwtop.report.facts.tops import Row

_ROWS = 8
_LEAST = 0.005  # of an attack's packets: fewer have nothing in common but chance


class AttackDetail(Struct, frozen=True):
    """What is known of one attack's packets; an attack with forged sources has no tables of sources."""

    looks: int = 0  # how often its packets were looked at
    tables: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    packets: tuple[SamplePacket, ...] = ()
    shown: SamplePacket | None = None
    dissection: Dissection = field(default_factory=Dissection)


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
