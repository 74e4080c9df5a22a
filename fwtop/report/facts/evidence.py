"""An attack's own packets: tables over its time, and one packet of it decoded."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from fwtop.dissect.wire import LINK_ETHERNET, LINK_IP, Dissect, Dissection
from fwtop.model.traffic.session import AttackEvidence, SamplePacket, SessionRecord
from fwtop.model.traffic.snapshot import PacketSignature, PartTraffic
from fwtop.rules.words import describe

SOURCE_TABLES = ("address", "prefix", "asn", "country")
_ROWS = 8
_LEAST = 0.005  # of an attack's packets: fewer have nothing in common but chance


class PartRow(Struct, frozen=True):
    """A line of an attack's table; `share` is of the attack's own packets, an estimate from samples."""

    key: str
    detail: str
    share: float
    hex: str = ""


class AttackDetail(Struct, frozen=True):
    """What is known of one attack's packets; an attack with forged sources has no tables of sources."""

    looks: int = 0  # how often its packets were looked at
    tables: dict[str, tuple[PartRow, ...]] = field(default_factory=dict)
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


def _tables(looks: list[AttackEvidence], *, spoofed: bool) -> dict[str, tuple[PartRow, ...]]:
    whole = sum(look.pps for look in looks)
    sums: dict[str, dict[str, PartRow]] = {}
    weights: dict[tuple[str, str], float] = {}
    for look in looks:
        for name, row in _rows(look.part):
            if spoofed and name in SOURCE_TABLES:
                continue
            sums.setdefault(name, {}).setdefault(row.key, row)
            weights[name, row.key] = weights.get((name, row.key), 0.0) + row.share * look.pps
    tables = {}
    for name, rows in sums.items():
        made = [
            PartRow(row.key, row.detail, min(weights[name, key] / whole, 1.0) if whole > 0 else 0.0, row.hex)
            for key, row in rows.items()
        ]
        if name == "prefix" and not any("/" in row.key for row in made):
            continue  # they are the addresses once more
        least = 0.0 if name in SOURCE_TABLES else _LEAST
        made = [row for row in made if row.share >= least]
        tables[name] = tuple(sorted(made, key=lambda row: -row.share)[:_ROWS])
    return tables


def _rows(part: PartTraffic) -> Iterable[tuple[str, PartRow]]:
    tables = part.tables
    for name in SOURCE_TABLES:
        for source in getattr(tables.sources, name):
            number = f"AS{source.asn} " if source.asn and name != "asn" else ""
            owner = f"{number}{source.as_name or ''}".strip() if name != "country" else ""
            where = source.country if name != "country" else None
            detail = " · ".join(text for text in (where, owner, _who(source.who)) if text)
            yield name, PartRow(source.key, detail, source.share.share)
    for target in tables.destinations:
        yield "target", PartRow(target.key, "", target.share.share)
    for port in tables.ports:
        side = "from" if port.side == "src" else "to"
        yield "port", PartRow(f"{port.protocol} {side} {port.port}", port.service or "", port.share.share)
    for payload in part.payloads:
        place = "anywhere" if payload.offset is None else f"at byte {payload.offset}"
        key = payload.dns_name or payload.text
        yield "payload", PartRow(key, place, payload.share.share, payload.data.hex())
    for signature in part.signatures:
        yield "signature", _signature(signature)


def _signature(signature: PacketSignature) -> PartRow:
    normal = f"{signature.baseline_share * 100:.1f} % of normal packets" if signature.baseline_share else ""
    return PartRow(describe(signature.match), normal, signature.share.share)


def _who(who: str) -> str:
    return "" if who in ("", "attack") else who
