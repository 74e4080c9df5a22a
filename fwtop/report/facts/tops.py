"""Tables of a whole session: packets by source, port, payload and place of the drop, over all snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct, field

from fwtop.model.traffic.snapshot import LedgerRow, Payload, Port, Share, Snapshot, Source

ROWS = 15
LEDGER_ROWS = 60  # every rule that dropped anything has a row of its own
_MAX_GAP_SECONDS = 600.0  # a snapshot stands for the time until the next one, at most this long
_MAX_KEYS = 20_000  # per table while summing: forged sources differ in every snapshot


class Row(Struct):
    """One line of a table, summed over time; `share` is of all packets in that time."""

    key: str
    detail: str = ""
    packets: float = 0.0
    share: float = 0.0
    peak_pps: float = 0.0
    dropped: float = 0.0  # packets of its own that were dropped
    hex: str = ""

    @property
    def dropped_share(self) -> float:
        """Share of its own packets that were dropped, 0 to 1."""
        return self.dropped / self.packets if self.packets else 0.0


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
    attacked = any(snapshot.judgement.attacks for snapshot in snapshots)
    tops = Tops(during_attack=attacked)
    tables: dict[str, dict[str, Row]] = {}
    for snapshot, seconds in zip(snapshots, _spans(snapshots), strict=True):
        if attacked and not snapshot.judgement.attacks:
            continue
        tops.seconds += seconds
        tops.packets += snapshot.tables.totals.pps * seconds
        tops.snapshots += 1
        titles = [attack.title for attack in snapshot.judgement.attacks if attack.spoofed]
        tops.forged = tuple(dict.fromkeys((*tops.forged, *titles)))
        for name, rows in _rows(snapshot):
            table = tables.setdefault(name, {})
            for row, pps, dropped_share in rows:
                _add(table, row, pps, pps * seconds, dropped_share)
    for name, table in tables.items():
        limit = LEDGER_ROWS if name == "ledger" else ROWS
        best = sorted(table.values(), key=lambda row: row.packets, reverse=True)[:limit]
        for row in best:
            row.share = row.packets / tops.packets if tops.packets else 0.0
        tops.tables[name] = best
    return tops


def _spans(snapshots: list[Snapshot]) -> list[float]:
    ends = [snapshot.started + snapshot.seconds for snapshot in snapshots]
    gaps = [min(max(after - before, 0.0), _MAX_GAP_SECONDS) for before, after in pairwise(ends)]
    last = gaps[-1] if gaps else snapshots[0].seconds if snapshots else 0.0
    return [*gaps, last][: len(snapshots)]


def _add(table: dict[str, Row], row: Row, pps: float, packets: float, dropped_share: float) -> None:
    kept = table.get(row.key)
    if kept is None:
        if len(table) >= _MAX_KEYS:
            return
        kept = table[row.key] = row
    kept.packets += packets
    kept.dropped += packets * dropped_share
    kept.peak_pps = max(kept.peak_pps, pps)


_Rows = Iterable[tuple[Row, float, float]]


def _rows(snapshot: Snapshot) -> Iterable[tuple[str, _Rows]]:
    tables, sources = snapshot.tables, snapshot.tables.sources
    for name in ("address", "prefix", "asn", "country"):
        yield name, (_source(entry, name) for entry in getattr(sources, name))
    yield "port", (_port(port) for port in tables.ports)
    yield "payload", (_payload(payload) for payload in snapshot.judgement.payloads or tables.payloads)
    yield "protocol", (_protocol(name, share) for name, share in tables.protocols.items())
    yield "ledger", (_ledger(row) for row in tables.ledger)


def _source(entry: Source, name: str) -> tuple[Row, float, float]:
    number = f"AS{entry.asn} " if entry.asn and name != "asn" else ""
    owner = f"{number}{entry.as_name or ''}".strip() if name != "country" else ""
    where = entry.country if name != "country" else None
    detail = " · ".join(part for part in (where, owner) if part)
    return Row(entry.key, detail), entry.share.pps, entry.dropped_share


def _port(port: Port) -> tuple[Row, float, float]:
    side = "from" if port.side == "src" else "to"
    return Row(f"{port.protocol} {side} {port.port}", port.service or ""), port.share.pps, 0.0


def _payload(payload: Payload) -> tuple[Row, float, float]:
    where = "anywhere" if payload.offset is None else f"at byte {payload.offset}"
    name = payload.dns_name or payload.text
    return Row(name, where, hex=payload.data.hex()), payload.share.pps, 0.0


def _protocol(name: str, share: Share) -> tuple[Row, float, float]:
    return Row(name), share.pps, 0.0


def _ledger(row: LedgerRow) -> tuple[Row, float, float]:
    reason = f"{row.layer} · {row.reason}" if row.reason else row.layer
    return Row(f"rule {row.rule} · {reason}" if row.rule else reason), row.pps, 0.0
