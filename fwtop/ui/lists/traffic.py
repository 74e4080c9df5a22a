"""The traffic in eight views: by source, destination, port, payload and signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from rich.style import Style

from fwtop.model.traffic.snapshot import Destination, PacketSignature, Payload, Snapshot, Source
from fwtop.render.rows.destination import DESTINATION, part_text
from fwtop.render.rows.field import RowType
from fwtop.render.rows.payload import PAYLOAD
from fwtop.render.rows.port import PORT
from fwtop.render.rows.signature import SIGNATURE, signature_words
from fwtop.render.rows.source import SOURCE, SOURCE_LISTS
from fwtop.ui.drawing.format import percent
from fwtop.ui.drawing.style import BAD, DIM, GOOD, STRONG, TEXT, WARN, Line
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.table import ESTIMATE, Cell, CellContext, View, columns_of
from fwtop.ui.state.packets import PacketRow

ATTACK = "attack"
_WHO = {"resolver": "dns", "time server": "ntp", "this host": "own", "ssh client": "ssh"}
_NOTICED = 0.005
_MOST = 0.5  # of its packets
_UNSURE = 0.3  # width of the 95 % interval: from here on, only the interval is shown
_UNKNOWN = 0.9


def spared(item: object) -> bool:
    """Whether a row is a client or a peer that b must not block by mistake."""
    return isinstance(item, Source | PacketRow) and item.who not in ("", ATTACK)


def _dropped(item: Source | Destination | PacketSignature, context: CellContext, _: int) -> Line:
    if not context.is_live:
        return [("–", DIM)]
    if isinstance(item, Source) and item.dropped_high - item.dropped_low > _UNSURE:
        known = item.dropped_high - item.dropped_low <= _UNKNOWN
        return [(f"{100 * item.dropped_low:.0f}–{100 * item.dropped_high:.0f} %" if known else "?", DIM)]
    return [(percent(item.dropped_share), GOOD if item.dropped_share >= _NOTICED else DIM)]


def _who(item: Source, context: CellContext, _: int) -> Line:
    """Say who a source is; of an attacker with a rule, which one."""
    if spared(item):
        return [(_WHO.get(item.who, item.who), WARN if item.who == "you" else GOOD)]
    if item.active_rule:
        return [(f"▪{item.active_rule}", GOOD)]
    if item.who == ATTACK:
        return [(ATTACK, _alarm(item.dropped_share, context))]
    return [("unknown", DIM)] if context.attacks else []


def _alarm(dropped: float, context: CellContext) -> Style:
    """Red is for attacks that reach services; a capture doesn't tell."""
    return BAD if context.is_live and dropped < _MOST else STRONG


def _destination(item: Destination, *_: object) -> Line:
    part = part_text(item)
    return [(item.key, TEXT), *([(f" {part}", DIM)] if part else [])]


def _payload(item: Payload, *_: object) -> Line:
    if item.dns_name is not None:
        return [("DNS ", DIM), (item.dns_name, TEXT)]
    return [(item.text, TEXT)]


def _normal(item: Payload | PacketSignature, *_: object) -> Line:
    return [(percent(item.baseline_share), DIM if item.baseline_share < _NOTICED else WARN)]


def _signature(item: PacketSignature, *_: object) -> Line:
    first, *others = signature_words(item.match)
    return [(first, STRONG), *((f" {word}", TEXT) for word in others)]


def _whose(item: PacketSignature, context: CellContext, _: int) -> Line:
    """Say which attack most of the packets are of, or that normal packets look like this, too."""
    if item.attack_share >= _MOST:
        return [(f"{ATTACK} {context.letter(item.attack)}".rstrip(), _alarm(item.dropped_share, context))]
    if item.baseline_share >= _NOTICED:
        return [("normal", GOOD)]
    return [("unknown", DIM)] if context.attacks else []


def _view(name: str, row: RowType, /, without: str = "", empty: str = "nothing yet", **cells: Cell) -> View:
    names = " ".join(column for column in row.columns.split() if column not in without.split())
    cells = {**ESTIMATE, "dropped_share": _dropped, "baseline_share": _normal, **cells}
    return View(name, columns_of(row, cells, names), row, share=lambda item: item.share.share, empty=empty)


def _source_view(name: str, title: str, width: int, without: str = "", empty: str = "nothing yet") -> View:
    view = _view(name, SOURCE, without, empty, who=_who)
    key, *others = view.columns
    columns = (replace(key, title=title, width=width), *others)
    return replace(view, columns=columns, whole=True, group=_heading)


def _heading(item: Source) -> str:
    return f"clients and known peers: {KEY_MAP.label('block_spared')} blocks one" if spared(item) else ""


SOURCE_VIEWS = (
    _source_view("address", "address", 15),
    _source_view("prefix", "prefix", 18, empty="no prefix stands out: the sources are spread"),
    _source_view("asn", "AS", 10, without="country"),
    _source_view("country", "country", 7, without="country owner"),
)
PORT_VIEW = _view("port", PORT)
PAYLOAD_VIEW = _view("payload", PAYLOAD, empty="payloads have no bytes in common", name=_payload)
TRAFFIC_VIEWS = (
    *SOURCE_VIEWS,
    replace(_view("destination", DESTINATION, key=_destination), whole=True),
    PORT_VIEW,
    PAYLOAD_VIEW,
    _view(
        "signature",
        SIGNATURE,
        empty="no combination of header fields stands out",
        matches=_signature,
        attack=_whose,
    ),
)


def first_view(snapshot: Snapshot) -> str:
    """Return the view to begin with: the addresses of a spoofed flood are those of its victims."""
    spoofed = any(attack.spoofed for attack in snapshot.judgement.attacks)
    return "signature" if spoofed and snapshot.judgement.signatures else "address"


def traffic_items(snapshot: Snapshot, view: str) -> Sequence[Any]:
    """Return the rows of a view."""
    tables, judgement = snapshot.tables, snapshot.judgement
    if view in SOURCE_LISTS:
        return list(getattr(tables.sources, view))
    if view == "payload":
        return judgement.payloads or tables.payloads
    rows = {"destination": tables.destinations, "port": tables.ports, "signature": judgement.signatures}
    return rows[view]
