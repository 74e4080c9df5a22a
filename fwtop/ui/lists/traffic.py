"""The traffic by source, destination, port, payload and signature: now, and averages of hours and days."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from rich.style import Style

from fwtop.model.traffic.session import (
    PARTED,
    PLACES,
    TREND_DAYS,
    TREND_HOURS,
    flow_of,
    forged_share,
)
from fwtop.model.traffic.snapshot import (
    Destination,
    Incident,
    PacketSignature,
    Payload,
    Port,
    Snapshot,
    Source,
)
from fwtop.render.rows.field import RowType
from fwtop.render.rows.signature import SIGNATURE, signature_words
from fwtop.render.rows.traffic import DESTINATION, PAYLOAD, PORT, SOURCE, SOURCE_LISTS, part_text
from fwtop.render.trends import TITLES, coverage, spark
from fwtop.ui.format import number, percent
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.history import TrendItem
from fwtop.ui.lists.packet_rows import PacketRow
from fwtop.ui.lists.table import ESTIMATE, Cell, CellContext, Column, View, columns_of
from fwtop.ui.style import ACCENT, BAD, DIM, ELSEWHERE, GOOD, STRONG, TEXT, WARN, Line, detail, facts

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
    """Write the share that is dropped, in the colour of who drops most."""
    flow = flow_of(context.snapshot)
    if flow is None:
        return [("–", DIM)]
    if isinstance(item, Source) and item.dropped_high - item.dropped_low > _UNSURE:
        known = item.dropped_high - item.dropped_low <= _UNKNOWN
        return [(f"{100 * item.dropped_low:.0f}–{100 * item.dropped_high:.0f} %" if known else "?", DIM)]
    ends = ((flow.mine, GOOD), (flow.other, ELSEWHERE), (flow.kernel, DIM))
    style = max(ends, key=lambda end: end[0])[1]
    style = GOOD if isinstance(item, Source) and item.active_rule else style
    return [(percent(item.dropped_share), style if item.dropped_share >= _NOTICED else DIM)]


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


def _is_target(item: Port, attacks: Sequence[Incident]) -> bool:
    return item.side == "dst" and any(one.target == f"{item.protocol}/{item.port}" for one in attacks[:1])


def _heading(item: Source) -> str:
    return f"clients and known peers: {KEY_MAP.label('block_spared')} blocks one" if spared(item) else ""


SOURCE_VIEWS = (
    _source_view("address", "address", 15),
    _source_view("prefix", "prefix", 18, empty="no prefix stands out: the sources are spread"),
    _source_view("asn", "AS", 10, without="country", empty="no network is known; forged sources have none"),
    _source_view(
        "country",
        "country",
        7,
        without="country owner",
        empty="no country is known; forged sources have none",
    ),
)
PORT_VIEW = replace(_view("port", PORT), begins=_is_target)
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
    if not any(attack.spoofed for attack in snapshot.judgement.attacks):
        return "address"
    return "signature" if snapshot.judgement.signatures else "port"


def traffic_items(snapshot: Snapshot, view: str) -> Sequence[Any]:
    """Return the rows of a view."""
    tables, judgement = snapshot.tables, snapshot.judgement
    if view in ("asn", "country") and forged_share(snapshot) >= _MOST:
        return []  # of whom forged sources are says nothing
    if view in SOURCE_LISTS:
        return list(getattr(tables.sources, view))
    if view == "payload":
        return judgement.payloads or tables.payloads
    if view == "port":  # a source port that no service has is a client's
        return [port for port in tables.ports if port.side == "dst" or port.service]
    return tables.destinations if view == "destination" else judgement.signatures


_NAMES = {
    "traffic": "Traffic",
    "country": "Countries",
    "network": "Networks",
    "city": "Cities",
    "port": "Ports",
    "service": "Service addresses",
    "dark": "Dark addresses",
}
_ENDS = {
    "arrived": ("arrived", STRONG),
    "mine": ("▓ my rules", GOOD),
    "other": ("▒ other firewalls", ELSEWHERE),
    "kernel": ("░ kernel, sockets", DIM),
    "accepted": ("█ reached you", TEXT),
    "service": ("to service addresses", TEXT),
    "dark": ("to dark addresses", DIM),
}
_EMPTY = {
    "traffic": "",
    "country": "nothing in the last 15 days; forged sources have no country",
    "network": "nothing in the last 15 days; forged sources have no network",
    "city": "none: there is no city database in /var/lib/GeoIP or --geoip, or no history",
    "service": "none: so far nothing answered, as far as the history goes back",
    "dark": "none: something answered from each address, as far as the history goes back",
}
_TITLES = {"traffic": "pps", "service": "address", "dark": "address"}
_ALL = "all"
_TREND = RowType(
    key=lambda item: item.row.key,
    search=lambda item: f"{item.row.key} {item.row.label}",
    sorts=(
        ("1 day", lambda item: item.row.day or 0.0),
        ("dropped", lambda item: item.row.dropped_share or 0.0),
    ),
)
_HOUR = 3_600


def _trend_name(item: TrendItem, *_: object) -> Line:
    if item.kind == "traffic":
        return [_ENDS.get(item.row.key, (item.row.key, TEXT))]
    dark = " dark" if item.kind == "port" and item.row.answers is False else ""
    label = f" {item.row.label}" if item.row.label else ""
    return [(item.row.key, TEXT), (f"{label}{dark}", DIM)]


def _rate(value: float | None) -> Line:
    return [("–", DIM)] if value is None else [(number(value), TEXT)]


def _days(item: TrendItem, _: CellContext, width: int) -> Line:
    """Draw whole days in few cells, equal parts of a day in more."""
    cells = max(width // TREND_DAYS, 1) * TREND_DAYS
    return [(spark(item.row.days, min(cells, len(item.row.days))), ACCENT)]


def _trend_dropped(item: TrendItem, *_: object) -> Line:
    share = item.row.dropped_share
    return [("–", DIM)] if share is None else [(percent(share), TEXT)]


def _trend_views(kind: str) -> tuple[View, ...]:
    """Make the list of a kind, of parts also for what went to service addresses and to dark ones."""
    names = (_ALL, *PLACES) if kind in PARTED else ("",)
    return tuple(_trend_view(kind, name) for name in names)


def _trend_items(kind: str, context: CellContext, view: str) -> tuple[TrendItem, ...]:
    return context.history.items(f"{view} {kind}" if view in PLACES else kind)


def _trend_view(kind: str, name: str) -> View:
    columns = [
        Column(_TITLES.get(kind, kind), 20, _trend_name, grow=1),
        Column("1 hour", 6, lambda item, *_: _rate(item.row.hour), right=True),
        Column("packets", 7, lambda item, *_: _rate(item.row.packets), right=True, keep=5),
        Column(
            "24 hours",
            TREND_HOURS,
            lambda item, _, width: [(spark(item.row.hours, min(width, TREND_HOURS)), ACCENT)],
            keep=2,
        ),
        Column("1 day", 5, lambda item, *_: _rate(item.row.day), right=True, keep=1),
        Column("15 days", TREND_DAYS, _days, grow=2, keep=3),
    ]
    if kind not in ("traffic", "port", "city") and name not in PLACES:
        columns.append(Column("dropped", 7, _trend_dropped, right=True, keep=4))
    empty = _EMPTY.get(kind, "nothing in the last 15 days")
    return View(name, tuple(columns), _TREND, empty=empty, drawn=True)


def _traffic_title(context: CellContext) -> str:
    """Say what the averages stand for."""
    found = context.history.trends
    if found is None:
        return "Traffic"
    observed = coverage(found.hour_seconds, found.day_seconds, found.days_seconds)
    note = f" · {found.note}" if found.note else ""
    return f"Traffic{note} · observed {observed}"


def _trend_title(name: str, context: CellContext) -> str:
    """Title a list of parts; if the data are synthetic, each says so."""
    note = " (synthetic)" if context.history.trends is not None and context.history.trends.note else ""
    return f"{name}{note}"


def trend_details(item: TrendItem, now: float) -> tuple[str, list[Line]]:
    """Write the averages of one row, hour by hour."""
    row = item.row
    name = _ENDS[row.key][0] if item.kind == "traffic" and row.key in _ENDS else row.key
    known = [value for value in row.days if value is not None]
    span = f"{number(min(known))} to {number(max(known))} pps an hour on average" if known else ""
    share = row.dropped_share
    lines = facts(
        ("what", f"{name} {row.label}".strip()),
        ("last hour", _words(row.hour) + (f", {row.packets:,} packets" if row.packets is not None else "")),
        ("last day", _words(row.day)),
        ("answers", {None: "", True: "yes", False: "dark: nothing ever answered there"}[row.answers]),
        ("dropped", "" if share is None else f"{percent(share)} of the last day's packets"),
        ("15 days", span),
    )
    lines.append([])
    first = int(now) // _HOUR * _HOUR - (len(row.hours) - 1) * _HOUR
    for place, value in enumerate(row.hours):
        at = time.strftime("%d %b %H:00Z", time.gmtime(max(first + place * _HOUR, 0)))
        lines.append(detail(at, _words(value)))
    return f"{TITLES[item.kind].lower()}: {name}", lines


def _words(value: float | None) -> str:
    return "not observed" if value is None else f"{number(value)} pps"


TREND_LISTS = tuple(
    (
        kind,
        name,
        _trend_views(kind),
        lambda _, context, view, kind=kind: _trend_items(kind, context, view),
        _traffic_title if kind == "traffic" else partial(_trend_title, name),
    )
    for kind, name in _NAMES.items()
)  # kind, title, views, what they list, what writes the title
