"""The history graph: what became of the packets, the newest at the right edge; functions and a widget.

A column is two seconds, or as many as the operator sets, and shows the busiest one, as it was: nothing is
averaged away. The bits of a part are estimated by its share of the packets: the ledger counts packets only.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual import events
from textual.message import Message

from fwtop.ui.drawing.format import number
from fwtop.ui.drawing.layout import Lines
from fwtop.ui.drawing.style import ACCENT, BAD, DIM, ELSEWHERE, GOOD, TEXT, TITLE, Line, fit
from fwtop.ui.state.history import History, Point

COLUMN_SECONDS = 2
_LABEL = 7  # cells of the scale
_LEGEND = 18
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_GLYPHS = "█▓▒░"
_STEPS = (1.0, 2.0, 5.0, 10.0)
Part = tuple[float, float, float, float]  # reaches you, my rules, other firewall, kernel


def second_at(history: History, width: int, x: int, seconds: int = COLUMN_SECONDS) -> int | None:
    """Return the first second of the column at cell `x` of a graph; None: no column."""
    cells = width - _LABEL - _LEGEND
    place = x - _LABEL
    if not 0 <= place < cells or not history.points:
        return None
    return (history.second // seconds - (cells - 1 - place)) * seconds


def graph_lines(
    history: History,
    width: int,
    height: int,
    *,
    in_bits: bool,
    cursor: int | None = None,
    seconds: int = COLUMN_SECONDS,
) -> list[Line]:
    """Draw `height` lines, the last of them the time axis with the rules that were installed.

    The column of the second `cursor` stands out.
    """
    cells, rows = width - _LABEL - _LEGEND, height - 1
    if cells < 1 or rows < 1:
        return []
    columns = _columns(history, cells, seconds)
    parts = [_parts(point, in_bits=in_bits) if point is not None else None for point in columns]
    top = _scale(max((sum(part) for part in parts if part is not None), default=0.0))
    lines = []
    for row in range(rows, 0, -1):
        drawn = [_cell(part, row, rows / top) for part in parts]
        line: Line = [_label(top, row, rows)]
        for (glyph, part), point in zip(drawn, columns, strict=True):
            line.append((glyph, _style(part, attack=point is not None and point.attack)))
        lines.append(line)
    lines.append(_axis(history, cells, seconds))
    marked = None if cursor is None else cells - 1 - (history.second - cursor) // seconds
    if marked is not None and 0 <= marked < cells:
        for line in lines[:-1]:
            glyph, style = line[1 + marked]
            line[1 + marked] = ("│", TITLE) if glyph == " " else (glyph, style + Style(reverse=True))
    seen = [point for point in columns if point is not None and point.flow.arrives > 0]
    legend = _legend(height, in_bits=in_bits, known=not seen or not all(map(_unknown, seen)))
    return [
        [*line, ("  ", TEXT), *fit(words, _LEGEND - 2)] for line, words in zip(lines, legend, strict=True)
    ]


class Graph(Lines):
    """The history graph; a click moves its cursor."""

    class Clicked(Message):
        """A column was clicked."""

        def __init__(self, second: int) -> None:
            super().__init__()
            self.second = second

    def __init__(self) -> None:
        super().__init__("graph")
        self.seconds = COLUMN_SECONDS  # of a column
        self._history = History()
        self._drawn: tuple[object, ...] = ()  # what it was last drawn for

    def write(self, history: History, *, in_bits: bool, cursor: int | None) -> None:
        """Draw at most once a second, and when place, unit or cursor change."""
        self._history = history
        wanted = (history.second, self.box, in_bits, cursor, self.seconds)
        if wanted != self._drawn:
            self._drawn = wanted
            width, height = self.box.width, self.box.height
            lines = graph_lines(history, width, height, in_bits=in_bits, cursor=cursor, seconds=self.seconds)
            self.show(lines)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the column under the pointer."""
        second = second_at(self._history, self.box.width, event.x, self.seconds)
        if second is not None:
            self.post_message(self.Clicked(second))


def _columns(history: History, cells: int, seconds: int) -> list[Point | None]:
    """Fold the history by the busiest second; columns begin at multiples of `seconds`, so that they stay."""
    columns: list[Point | None] = [None] * cells
    last = history.second // seconds
    for age, point in enumerate(reversed(history.points)):
        place = cells - 1 - (last - (history.second - age) // seconds)
        if place < 0:
            break
        held = columns[place]
        if held is None or point.flow.arrives > held.flow.arrives:
            columns[place] = point
    return columns


def _parts(point: Point, *, in_bits: bool) -> Part:
    flow = point.flow
    if _unknown(point):
        return (flow.bps if in_bits else flow.arrives), 0.0, 0.0, 0.0
    factor = flow.bps / flow.arrives if in_bits and flow.arrives > 1e-9 else 1.0
    return flow.reaches * factor, flow.mine * factor, flow.other * factor, flow.kernel * factor


def _unknown(point: Point) -> bool:
    """Whether it isn't known what became of a second's packets: a capture doesn't tell."""
    flow = point.flow
    return flow.reaches + flow.mine + flow.other + flow.kernel <= 0 < flow.arrives


def _scale(most: float) -> float:
    """Return a round number that the greatest column doesn't exceed."""
    power = 1.0
    while power * 10 < most:
        power *= 10
    return next(step * power for step in _STEPS if most <= step * power or step == _STEPS[-1])


def _cell(part: Part | None, row: int, rows_per_unit: float) -> tuple[str, int]:
    """Return the glyph of a cell, the lowest row being 1, and which part it shows."""
    if part is None or sum(part) <= 0:
        return " ", 0
    covered = [0.0] * 4
    low = 0.0
    for number_, value in enumerate(part):
        high = low + value * rows_per_unit
        covered[number_] = max(min(high, row) - max(low, row - 1), 0.0)
        low = high
    whole = sum(covered)
    most = max(range(4), key=lambda place: covered[place])
    if most == 0:
        eighths = round(whole * 8)
        return _EIGHTHS[max(eighths, 1) if row == 1 else eighths], 0
    if whole >= 0.5:
        return _GLYPHS[most], most
    return ("▁" if row == 1 and whole > 0 else " "), most


def _style(part: int, *, attack: bool) -> Style:
    if part == 0:
        return BAD if attack else ACCENT
    return (GOOD, ELSEWHERE, DIM)[part - 1]


def _label(top: float, row: int, rows: int) -> tuple[str, Style]:
    shown = row == rows or (rows >= 4 and row == rows // 2)
    written = number(top * row / rows)[: _LABEL - 1] if shown else ""
    return f"{written:>{_LABEL - 1}}┤", DIM


def _axis(history: History, cells: int, seconds: int) -> Line:
    """Write the time axis; a rule stands where it was installed."""
    axis = ["─"] * cells
    minute = 60 // seconds
    for place in range(cells - 1 - minute, -1, -minute):
        axis[place] = "┬"
    marked = dict(enumerate(axis))
    styles: list[Style] = [DIM] * cells
    last = history.second // seconds
    for rule_id, at in sorted(history.marks.items(), key=lambda mark: mark[1]):
        place = cells - 1 - (last - int(at) // seconds)
        for offset, char in enumerate(f"▲{rule_id}"):
            if 0 <= place < cells and place + offset < cells:
                marked[place + offset] = char
                styles[place + offset] = TITLE
    line: Line = [(f"{'0':>{_LABEL - 1}}┼", DIM)]
    return [*line, *((marked[place], styles[place]) for place in range(cells))]


def _legend(height: int, *, in_bits: bool, known: bool) -> list[Line]:
    """Name the parts, on as many lines as there are."""
    if not known:
        unit = "bit/s" if in_bits else "pps"
        return [[("█ ", ACCENT), ("recorded", TEXT)], *[[]] * (height - 2), [("end  g ", DIM), (unit, TEXT)]]
    names: Sequence[Line] = (
        [("█ ", BAD), ("reaches you", TEXT)],
        [("▓ ", GOOD), ("my rules", TEXT)],
        [("▒ ", ELSEWHERE), ("other firewall", TEXT)],
        [("░ ", DIM), ("kernel, socket", TEXT)],
    )
    short: Sequence[Line] = (
        [("█ ", BAD), ("you ", TEXT), *names[1]],
        [names[2][0], ("other ", TEXT), names[3][0], ("kern", TEXT)],
    )
    legend = list(names) if height >= 5 else list(short) if height < 4 else [names[0], names[1], short[1]]
    legend += [[]] * (height - 1 - len(legend))
    unit = "bit/s ~" if in_bits else "pps"
    return [*legend[: height - 1], [("now  g ", DIM), (unit, TEXT)]]
