"""Columns as data: what a cell shows, how wide it is, and which columns give way on a narrow panel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fwtop.ui.cells import Line, fit
from fwtop.ui.format import bar, error_bar, number, percent, scale_of
from fwtop.ui.items import Estimate, Item
from fwtop.ui.palette import BAD, BAR, DIM, TEXT
from fwtop.ui.table import Ordering

GAP = 2


@dataclass(frozen=True, slots=True)
class Scene:
    """What cells need beside their item."""

    now: float  # Unix seconds
    scale: float = 1.0  # share that a full bar stands for
    slow: bool = False
    attack: bool = False  # an attack is under way


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `width` is fixed; with `grow` it takes its part of what is left over."""

    title: str
    width: int
    cell: Callable[[Any, Scene], Line]
    right: bool = False
    grow: int = 0
    keep: int = 0  # the smaller, the longer the column stays when the panel gets narrow


@dataclass(frozen=True, slots=True)
class View:
    """One way of listing things: a panel has one or more, `v` changes between them."""

    name: str
    columns: tuple[Column, ...]
    ordering: Ordering
    share: Callable[[Any], float] | None = None  # for the scale of the bars
    header: bool = True
    empty: str = "nothing yet"


def laid_out(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
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


def header_line(layout: Sequence[tuple[Column, int]]) -> Line:
    """Write the column titles."""
    return _joined(fit([(column.title, DIM)], width, right=column.right) for column, width in layout)


def row_line(layout: Sequence[tuple[Column, int]], item: Item, scene: Scene) -> Line:
    """Write an item's cells."""
    return _joined(fit(column.cell(item, scene), width, right=column.right) for column, width in layout)


def panel_scale(view: View, items: Sequence[Any]) -> float:
    """Return the share that a full bar stands for."""
    return scale_of([view.share(item) for item in items]) if view.share else 1.0


def share_columns(*, bar_width: int, keep: int) -> tuple[Column, ...]:
    """Return the bar, the share with its error and the rate: the same in every panel of estimates."""

    def drawn(item: Estimate, scene: Scene) -> Line:
        if scene.slow:
            return []
        share = item.share
        sure, maybe = bar(share.share, share.share_low, share.share_high, scale=scene.scale, width=bar_width)
        return [(sure, BAR), (maybe, DIM)]

    def written(item: Estimate, _: Scene) -> Line:
        share = item.share
        error = error_bar(share.share_low, share.share_high)
        return [(percent(share.share), TEXT), (f" {error:>6}", DIM)]

    return (
        Column("", bar_width, drawn, keep=keep + 40),
        Column("share  ±95 %", 14, written, right=True, keep=keep + 1),
        Column("pps", 5, lambda item, _: [(number(item.share.pps), TEXT)], right=True, keep=keep),
    )


def share_style(value: float) -> Line:
    """Write a share that is bad when it is not nothing."""
    return [(percent(value), BAD if value >= 0.005 else DIM)]


def _joined(cells: Iterable[Line]) -> Line:
    line: Line = []
    for cell in cells:
        if line:
            line.append((" " * GAP, TEXT))
        line += cell
    return line
