"""Tables of a whole session: packets by source, port, payload and place of the drop, over all snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec import Struct, field

from fwtop.model.traffic.snapshot import Payload, Snapshot
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.field import Field
from fwtop.render.rows.source import SOURCE_LISTS

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
    return row, kind.field("pps").of(item), {measure: measure.of(item) for measure in kind.averaged}
