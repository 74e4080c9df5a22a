"""The report's section on the days before: averages of the last hour, day and 15 days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fwtop.model.traffic.history import TREND_HOURS, TrendRow, Trends
from fwtop.render.numbers import percent
from fwtop.render.trends import TITLES, TRAFFIC_WORDS, averaged, coverage, spark, trends_json
from fwtop.report.page.markup import Markup, tag
from fwtop.report.wording import day_and_time, si

HEADING = "The days before"
_ROWS = 8
_NUMBERS = ("last hour", "last day", "dropped")
_BARS = 60  # of 15 days: six hours each
_WIDTH, _HEIGHT = 240.0, 26.0


def trends_section(trends: Trends | None) -> Markup:
    """Return the section of the HTML report; nothing without a history."""
    if trends is None:
        return Markup("")
    shown = [_table(kind, trends.group(kind)[:_ROWS]) for kind in TITLES]
    return tag(
        "section",
        tag("h2", HEADING),
        tag("p", _hint(trends), class_="hint"),
        tag("p", trends.note, class_="hint") if trends.note else None,
        tag("div", *(tag("div", table, class_="wide") for table in shown if table), class_="tables"),
    )


def trends_lines(trends: Trends | None, escape: Callable[[str], str]) -> list[str]:
    """Return the section of the Markdown report; `escape` makes a text plain there."""
    if trends is None:
        return []
    lines = [f"## {HEADING}", "", escape(_hint(trends)), ""]
    if trends.note:
        lines += [f"**{escape(trends.note)}**", ""]
    for kind, title in TITLES.items():
        rows = trends.group(kind)[:_ROWS]
        if not rows:
            continue
        lines.append(f"| {escape(title)} | last hour | 24 hours | last day | 15 days | dropped |")
        lines.append("|---|---|---|---|---|---|")
        lines += [
            f"| {escape(_name(kind, row))} | {_rate(row.hour)} | {spark(row.hours, TREND_HOURS)} "
            f"| {_rate(row.day)} | {spark(row.days, 30)} | {_dropped(row)} |"
            for row in rows
        ]
        lines.append("")
    return lines


def trends_data(trends: Trends | None) -> dict[str, Any] | None:
    """Return the section of the JSON report: the document of `fwtop trends`."""
    return trends_json(trends) if trends is not None else None


def _hint(trends: Trends) -> str:
    observed = coverage(trends.hour_seconds, trends.day_seconds, trends.days_seconds)
    return (
        f"Packets a second on average, up to {day_and_time(trends.at)}; of this, {observed} were observed. "
        "Each graph has a scale of its own. Only the largest entries of each minute are kept, so averages "
        "of small ones are lower bounds."
    )


def _table(kind: str, rows: Sequence[TrendRow]) -> Markup:
    if not rows:
        return Markup("")
    heads = (TITLES[kind], "last hour", "24 hours", "last day", "15 days", "dropped")
    head = tag("tr", *(tag("th", name, class_="n" if name in _NUMBERS else None) for name in heads))
    body = (
        tag(
            "tr",
            tag("td", _name(kind, row), class_="key"),
            tag("td", _rate(row.hour), class_="n"),
            tag("td", _graph(row.hours, "24 hours")),
            tag("td", _rate(row.day), class_="n"),
            tag("td", _graph(row.days, "15 days")),
            tag("td", _dropped(row), class_="n"),
        )
        for row in rows
    )
    return tag("table", head, *body)


def _graph(values: Sequence[float | None], label: str) -> Markup:
    """Draw averages as bars side by side; a gap where nothing was observed."""
    cells = averaged(values, _BARS)
    top = max((value for value in cells if value is not None), default=0.0)
    width = _WIDTH / max(len(cells), 1)
    bars = []
    for place, value in enumerate(cells):
        if value and top > 0:
            height = max(value / top * _HEIGHT, 0.6)
            left = place * width
            bars.append(f"M{left:.1f} {_HEIGHT:.0f} v{-height:.1f} h{width:.1f} v{height:.1f} Z")
    return tag(
        "svg",
        tag("line", class_="grid", x1=0.0, x2=_WIDTH, y1=_HEIGHT, y2=_HEIGHT),
        tag("path", class_="delivered", d=Markup(" ".join(bars))) if bars else None,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        style=f"width:{_WIDTH:.0f}px;max-width:100%",
        role="img",
        aria_label=f"{label}, at most {si(top, 'pps')}",
    )


def _name(kind: str, row: TrendRow) -> str:
    name = TRAFFIC_WORDS.get(row.key, row.key) if kind == "traffic" else row.key
    return f"{name} {row.label}".rstrip()


def _rate(value: float | None) -> str:
    return "–" if value is None else si(value)


def _dropped(row: TrendRow) -> str:
    return "" if row.dropped_share is None else percent(row.dropped_share, None)
