"""The columns of the log."""

from __future__ import annotations

from fwtop.render.numbers import utc
from fwtop.render.observation import rfc3339
from fwtop.render.rows.field import RowType
from fwtop.ui.drawing.style import DIM, TEXT, Line
from fwtop.ui.drawing.text import facts
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.lists.table import Column, View

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def ago(seconds: float) -> str:
    """Write an age in one unit, so that it seldom changes: 3 m ago."""
    whole = int(seconds)
    if whole < 1:
        return "now"
    size, unit = next((size, unit) for size, unit in _UNITS if whole >= size)
    return f"{whole // size} {unit} ago"


def _text(item: LogEntry, *_: object) -> Line:
    rule = item.kind.startswith("rule") and item.subject.isalnum()
    line: Line = [(f"{item.subject}: " if rule else "", TEXT), (item.text, TEXT)]
    return [*line, (f"  ×{item.count}", DIM)] if item.count > 1 else line


def entry_details(item: LogEntry, now: float) -> tuple[str, list[Line]]:
    """Return the title of an entry's details and its own lines."""
    times = f"{item.count:,}, the last one at this time" if item.count > 1 else ""
    at = f"{rfc3339(item.at)}, {ago(now - item.at)}"
    return item.words, facts(("at", at), ("event", item.words), ("times", times), ("what", item.text))


LOG_VIEW = View(
    "",
    (
        Column("time", 9, lambda item, *_: [(utc(item.at), DIM)]),
        Column("", 10, lambda item, context, _: [(f"({ago(context.seen - item.at)})", DIM)], keep=9),
        Column("event", 16, lambda item, *_: [(item.words, item.style)], keep=2),
        Column("", 24, _text, grow=1, whole=True),
    ),
    RowType(
        key=lambda item: str(item.number),
        search=lambda item: f"{item.words} {item.subject} {item.text}",
    ),
    newest_last=True,
    empty="nothing has happened yet",
)
