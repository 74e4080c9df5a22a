"""Tables: columns, their widths, and the cells of a row as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from rich.style import Style

from fwtop.model.traffic.session import PastAttack, flow_of
from fwtop.model.traffic.snapshot import (
    NOTHING,
    Destination,
    Incident,
    PacketSignature,
    Payload,
    Port,
    Snapshot,
    Source,
)
from fwtop.render.rows.field import Field, RowType, Unit
from fwtop.ui.format import bar, error_bar, number, octets, percent, scale_of
from fwtop.ui.lists.history import HistoryAnswer, RecentRates
from fwtop.ui.lists.numbers import ProposalList
from fwtop.ui.lists.rows import LogEntry, Scope
from fwtop.ui.style import BAR, DIM, TEXT, Line, fit, width_of, wrap_line

GAP = 2
Estimate = Source | Destination | Port | Payload | PacketSignature  # what has a share


class CellContext(Struct, frozen=True):
    """What cells need besides their item."""

    now: float  # Unix seconds
    scale: float = 1.0  # share that a full bar stands for
    slow: bool = False
    snapshot: Snapshot = NOTHING  # of all traffic, also where a part is listed
    scope: Scope = field(default_factory=Scope)
    trends: RecentRates = field(default_factory=RecentRates)
    log: Sequence[LogEntry] = ()
    earlier: Sequence[PastAttack] = ()  # of other sessions
    machine: Sequence[Struct] = ()  # every rule and set, whoever made it
    part: str = ""  # which part of the traffic is shown, in words
    history: HistoryAnswer = field(default_factory=HistoryAnswer)
    brief: bool = False  # on the Overview, which leaves out how sure a share is
    proposals: ProposalList = field(default_factory=ProposalList)
    width: int = 0  # of the list, in cells

    @property
    def seen(self) -> float:
        """When what is listed was seen: ages refer to it, and stand still while the screen is paused."""
        return self.snapshot.at

    @property
    def attacks(self) -> Sequence[Incident]:
        """The attacks that are under way."""
        return self.snapshot.judgement.attacks

    @property
    def is_live(self) -> bool:
        """Whether it is known what became of the packets: a capture doesn't tell."""
        return flow_of(self.snapshot) is not None

    def letter(self, title: str) -> str:
        """Return the letter of the attack that has a title; "" for none."""
        return next((attack.letter for attack in self.attacks if attack.title == title), "")


Cell = Callable[[Any, CellContext, int], Line]  # of an item, in so many cells


class Column(Struct, frozen=True):
    """One column. `width` is fixed; with `grow` it takes its share of the spare width.

    `whole` texts are broken into several lines rather than cut.
    """

    title: str
    width: int
    cell: Cell
    right: bool = False
    grow: int = 0
    keep: int = 0  # the smaller, the longer the column stays when the panel gets narrow
    whole: bool = False
    head: Style = DIM  # of its title
    sort: str = ""  # name of the order that its head chooses, if not its title
    label: str = ""  # its name in screen.toml, if that is not the title
    spills: bool = False  # takes the empty cells right of it, too

    @property
    def name(self) -> str:
        """The name in screen.toml; "" if the operator can't leave the column out."""
        if not self.keep:
            return ""
        return self.label or self.title.partition("  ")[0].replace(" ", "_").lower()


class View(Struct, frozen=True):
    """One way of listing things; `v` cycles through a panel's views."""

    name: str
    columns: tuple[Column, ...]
    row: RowType
    share: Callable[[Any], float] | None = None  # for the scale of the bars
    header: bool = True
    empty: str = "nothing yet"  # keys are named by actions: {block}; "": why there is no history
    whole: bool = False  # the first column is never cut: others give way
    all_rows: bool = False  # where not all rows fit, they are cut rather than scrolled out
    drawn: bool = False  # rows hold drawings, which the bar of the selected row would spoil
    newest_last: bool = False  # the list grows at its end, and the cursor follows that end
    group: Callable[[Any], str] | None = None  # heading of a group that stands below the others; "": none
    numbered: bool = False  # rows have numbers, which say where they stand
    below: Callable[[Any, CellContext, int], list[Line]] | None = None  # what the selected row has below it
    begins: Callable[[Any, Sequence[Incident]], bool] | None = None  # a row to begin with


def columns_of(row: RowType, cells: Mapping[str, Cell], names: str = "") -> tuple[Column, ...]:
    """Return a row's columns as declared; `cells` writes those that are more than their value."""
    return tuple(
        Column(
            field.heading,
            field.width,
            cells.get(field.name) or partial(_value, field),
            right=field.unit is not Unit.TEXT,
            grow=field.grow,
            keep=field.keep,
            whole=field.whole,
            sort=field.sort,
            label=field.column,
            spills=field.spills,
        )
        for field in map(row.field, (names or row.columns).split())
    )


WRITTEN: dict[Unit, Callable[[Any], str]] = {
    Unit.TEXT: str,
    Unit.COUNT: number,
    Unit.BYTES: octets,
    Unit.PPS: number,
    Unit.SHARE: percent,
}


def _value(field: Field, item: Struct, *_: object) -> Line:
    """Write a value by its unit; what names the row or is a rate stands out."""
    value = field.of(item)
    if value is None or value == "":
        return [("–", DIM)]
    return [(WRITTEN[field.unit](value), TEXT if not field.keep or field.unit is Unit.PPS else DIM)]


def with_columns(view: View, names: Sequence[str]) -> View:
    """Return a view with the columns that were chosen, in their order; those that say what a row is stay."""
    by_name = {column.name: column for column in view.columns if column.name}
    fixed = [column for column in view.columns if not column.name]
    return replace(view, columns=(*fixed, *(by_name[name] for name in names if name in by_name)))


def fit_columns(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Choose the columns that fit into `width` cells and give each its width."""
    chosen = list(columns)
    while len(chosen) > 1 and sum(c.width for c in chosen) + GAP * (len(chosen) - 1) > width:
        chosen.remove(max(chosen, key=lambda column: column.keep))
    spare = width - sum(c.width for c in chosen) - GAP * (len(chosen) - 1)
    parts = sum(column.grow for column in chosen)
    widths = []
    for column in chosen:
        extra = spare * column.grow // parts if parts and spare > 0 else 0
        spare -= extra
        parts -= column.grow
        widths.append((column, column.width + min(extra, spare + extra)))
    return widths


def columns_now(view: View, items: Sequence[Any], context: CellContext, width: int) -> list[Column]:
    """Return the columns that say something of these items, with the first one as wide as its cells if asked.

    A column that may go does while all its cells are empty or unknown, and no other's text is in its place.
    """

    def is_silent(column: Column) -> bool:
        cells = (column.cell(item, context, column.width) for item in items)
        return bool(column.keep) and not any(text.strip(" –") for cell in cells for text, _ in cell)

    silent = list(filter(is_silent, view.columns)) if items else []
    if silent and any(column.spills for column in view.columns):
        layout = fit_columns(view.columns, width)
        for item in items:
            written = [column for column, _ in _written(layout, item, context)[0]]
            silent = [column for column in silent if column in written]
    columns = [column for column in view.columns if column not in silent]
    if view.whole and items:
        widest = max(width_of(columns[0].cell(item, context, 0)) for item in items)
        columns[0] = replace(columns[0], width=max(columns[0].width, widest))
    return columns


def header_line(layout: Sequence[tuple[Column, int]]) -> Line:
    """Write the column titles."""
    return _join(fit([(column.title, column.head)], width, right=column.right) for column, width in layout)


def indent_of(layout: Sequence[tuple[Column, int]]) -> int:
    """Return how far right the text of a row begins: its first column that takes spare width."""
    first = next((place for place, (column, _) in enumerate(layout) if column.grow), 0)
    return sum(width + GAP for _, width in layout[:first])


MOST_LINES = 4  # of one row


def row_lines(
    layout: Sequence[tuple[Column, int]], item: Struct, context: CellContext, most: int = MOST_LINES
) -> list[Line]:
    """Write an item's cells, in as many lines as its `whole` columns need; `…` ends what is cut."""
    most = min(max(most, 1), MOST_LINES)
    cells: list[list[Line]] = []
    layout, written = _written(layout, item, context)
    for (column, width), cell in zip(layout, written, strict=True):
        rows = wrap_line(cell, width) if column.whole and width_of(cell) > width else [cell]
        if len(rows) > most:
            rows[most - 1] = [*rows[most - 1], ("…", DIM)]
        cells.append(rows)
    height = min(max((len(cell) for cell in cells), default=1), most)
    return [
        _join(
            fit(cell[row] if row < len(cell) else [], width, right=column.right)
            for (column, width), cell in zip(layout, cells, strict=True)
        )
        for row in range(height)
    ]


LinesOf = Callable[[int, int], list[Line]]  # of the row at a place, at most so many


def within(room: int, rows: int, lines_of: LinesOf) -> list[list[Line]]:
    """Fit all rows into `room` lines if each gets one: the last ones are worth more lines than the first."""
    fitted: list[list[Line]] = []
    spare = max(room - rows, 0)
    for place in reversed(range(rows)):
        fitted.append(lines_of(place, 1 + spare))
        spare -= len(fitted[-1]) - 1
    return fitted[::-1]


def _written(
    layout: Sequence[tuple[Column, int]], item: Struct, context: CellContext
) -> tuple[Sequence[tuple[Column, int]], list[Line]]:
    """Return the columns with their widths, and their cells, without those that another cell spills into."""
    kept: list[tuple[Column, int]] = []
    cells: list[Line] = []
    empty = 0  # cells right of the column that nothing is written in
    for column, own in reversed(layout):
        width, room = own, own + (empty if column.spills else 0)
        cell = column.cell(item, context, room)
        if column.spills and width_of(cell) > width:
            while width < min(width_of(cell), room):
                cells.pop()
                width += GAP + kept.pop()[1]
        kept.append((column, width))
        cells.append(cell)
        empty = 0 if cell else empty + GAP + width
    return kept[::-1], cells[::-1]


def bar_scale(view: View, items: Sequence[Any]) -> float:
    """Return the share that a full bar stands for."""
    return scale_of([view.share(item) for item in items]) if view.share else 1.0


def _bar(item: Estimate, context: CellContext, width: int) -> Line:
    if context.slow:
        return []
    share = item.share
    sure, maybe = bar(share.share, share.share_low, share.share_high, scale=context.scale, width=width)
    return [(sure, BAR), (maybe, DIM)]


def _error(item: Estimate, context: CellContext, _: int) -> Line:
    return [] if context.brief else [(error_bar(item.share.share_low, item.share.share_high), DIM)]


ESTIMATE: dict[str, Cell] = {
    "bar": _bar,
    "share": lambda item, *_: [(percent(item.share.share), TEXT)],
    "error": _error,
}


def trend_cell(key: str, context: CellContext, width: int) -> Line:
    """Draw how the rate of an attack or a rule moved."""
    return [] if context.slow else [(context.trends.spark(key, context.now, width), DIM)]


def _join(cells: Iterable[Line]) -> Line:
    line: Line = []
    for cell in cells:
        if line:
            line.append((" " * GAP, TEXT))
        line += cell
    return line
