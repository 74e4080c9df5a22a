"""The lists of the Trends tab: averages beside graphs of the last 24 hours and 15 days."""

from __future__ import annotations

import time
from functools import partial

from fwtop.model.traffic.history import TREND_DAYS, TREND_HOURS
from fwtop.render.rows.field import RowType
from fwtop.render.trends import TITLES, coverage, spark
from fwtop.ui.drawing.format import number, percent
from fwtop.ui.drawing.style import ACCENT, DIM, ELSEWHERE, GOOD, STRONG, TEXT, Line
from fwtop.ui.drawing.text import detail, facts
from fwtop.ui.lists.table import CellContext, Column, View
from fwtop.ui.state.history import TrendItem

_NAMES = {
    "traffic": "Traffic",
    "country": "Countries",
    "network": "Networks",
    "city": "Cities",
    "port": "Ports",
    "service": "Targets",
    "dark": "Dark targets",
}
_ENDS = {
    "arrived": ("arrived", STRONG),
    "mine": ("▓ my rules", GOOD),
    "other": ("▒ other firewalls", ELSEWHERE),
    "kernel": ("░ kernel, sockets", DIM),
    "accepted": ("█ reached you", TEXT),
}
_EMPTY = {
    "traffic": "no history yet: it begins with the first minute that is recorded",
    "city": "none: there is no city database in /var/lib/GeoIP or --geoip, or no history",
}
_TITLES = {"traffic": "pps", "service": "address", "dark": "address"}
_TREND = RowType(
    key=lambda item: item.row.key,
    search=lambda item: f"{item.row.key} {item.row.label}",
    sorts=(
        ("1 day", lambda item: item.row.day or 0.0),
        ("dropped", lambda item: item.row.dropped_share or 0.0),
    ),
)
_HOUR = 3_600


def _name(item: TrendItem, *_: object) -> Line:
    if item.kind == "traffic":
        return [_ENDS.get(item.row.key, (item.row.key, TEXT))]
    label: Line = [(f" {item.row.label}", DIM)] if item.row.label else []
    return [(item.row.key, TEXT), *label]


def _rate(value: float | None) -> Line:
    return [("–", DIM)] if value is None else [(number(value), TEXT)]


def _days(item: TrendItem, _: CellContext, width: int) -> Line:
    """Draw whole days in few cells, equal parts of a day in more."""
    cells = max(width // TREND_DAYS, 1) * TREND_DAYS
    return [(spark(item.row.days, min(cells, len(item.row.days))), ACCENT)]


def _dropped(item: TrendItem, *_: object) -> Line:
    share = item.row.dropped_share
    return [("–", DIM)] if share is None else [(percent(share), TEXT)]


def _view(kind: str) -> View:
    columns = [
        Column(_TITLES.get(kind, kind), 20, _name, grow=1),
        Column("1 hour", 6, lambda item, *_: _rate(item.row.hour), right=True),
        Column(
            "24 hours",
            TREND_HOURS,
            lambda item, _, width: [(spark(item.row.hours, min(width, TREND_HOURS)), ACCENT)],
            keep=2,
        ),
        Column("1 day", 5, lambda item, *_: _rate(item.row.day), right=True, keep=1),
        Column("15 days", TREND_DAYS, _days, grow=2, keep=3),
    ]
    if kind not in ("traffic", "port", "city"):
        columns.append(Column("dropped", 7, _dropped, right=True, keep=4))
    empty = _EMPTY.get(kind, "nothing in the last 15 days")
    return View("", tuple(columns), _TREND, empty=empty, drawn=True)


def _traffic_title(context: CellContext) -> str:
    """Say what the averages stand for, or why there are none."""
    answer = context.history
    if answer.trends is None:
        return answer.problem or "Traffic"
    found = answer.trends
    observed = coverage(found.hour_seconds, found.day_seconds, found.days_seconds)
    note = f" · {found.note}" if found.note else ""
    return f"Traffic{note} · observed {observed}"


def _title(name: str, context: CellContext) -> str:
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
        ("last hour", _words(row.hour)),
        ("last day", _words(row.day)),
        ("dropped", "" if share is None else f"{percent(share)} of the last day's packets"),
        ("15 days", span),
    )
    lines.append([])
    first = int(now) // _HOUR * _HOUR - (len(row.hours) - 1) * _HOUR
    for place, value in enumerate(row.hours):
        at = time.strftime("%d %b %H:00Z", time.gmtime(max(first + place * _HOUR, 0)))
        lines.append(detail(at, _words(value)))
    return f"{TITLES[item.kind].partition(' (')[0].lower()}: {name}", lines


def _words(value: float | None) -> str:
    return "not observed" if value is None else f"{number(value)} pps"


TREND_LISTS = tuple(
    (
        kind,
        name,
        _view(kind),
        lambda _, context, __, kind=kind: context.history.items(kind),
        _traffic_title if kind == "traffic" else partial(_title, name),
    )
    for kind, name in _NAMES.items()
)  # kind, title, view, what it lists, what writes its title
