"""The history graph: what became of the packets, the newest at the right edge; functions and a widget.

A column is two seconds, or as many as the operator sets, and shows the busiest one, as it was: nothing is
averaged away. The bits of a part are estimated by its share of the packets: the ledger counts packets only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from rich.style import Style
from textual import events

from fwtop.render.numbers import utc
from fwtop.ui.format import cut, number
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.layout import Clicked, Lines
from fwtop.ui.lists.history import History, Point
from fwtop.ui.style import ACCENT, BAD, DIM, ELSEWHERE, GOOD, TEXT, TITLE, Line, fit

COLUMN_SECONDS = 2
_LABEL = 7  # cells of the scale
LEGEND = 18
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_GLYPHS = "█▓▒░"
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_LABELLED = 8  # cells of a minute from which each one says how long ago it was
NOW = "now"
_ZEROS = re.compile(r"\.0+(?=\D|$)|(?<=\.\d)0(?=\D|$)")  # the scale is round: 50k, not 50.0k
Part = tuple[float, float, float, float]  # reaches you, my rules, other firewall, kernel


def graph_lines(
    history: History,
    width: int,
    height: int,
    *,
    in_bits: bool,
    cursor: int | None = None,
    seconds: int = COLUMN_SECONDS,
    end: str = NOW,
) -> list[Line]:
    """Draw `height` lines, below them the time axis with the rules that were installed, and what clients get.

    The column of the second `cursor` stands out; `end` says when the right edge is.
    """
    cells, rows = width - _LABEL - LEGEND, height - 1
    if cells < 1 or rows < 1:
        return []
    columns = _columns(history, cells, seconds)
    clients = _clients(columns, history) if height >= 5 else None  # on the last line
    if clients is not None:
        rows, height = rows - 1, height - 1
    parts = [_parts(point, in_bits=in_bits) if point is not None else None for point in columns]
    top = _scale(max((sum(part) for part in parts if part is not None), default=0.0), rows)
    drawn = [_column(part, rows, top) for part in parts]
    harm = [point is not None and point.attack and not point.stopped for point in columns]
    marked = None if cursor is None else cells - 1 - (history.second - cursor) // seconds
    lines = []
    for row in range(rows, 0, -1):
        line: Line = [
            (column[row - 1][0], _style(column[row - 1][1], harmful=harmful))
            for column, harmful in zip(drawn, harm, strict=True)
        ]
        if marked is not None and 0 <= marked < cells:
            glyph, style = line[marked]
            line[marked] = ("│", TITLE) if glyph == " " else (glyph, style + Style(reverse=True))
        lines.append([_label(top, row, rows), *_joined(line)])
    lines.append(_axis(history, cells, seconds))
    seen = [point for point in columns if point is not None and point.flow.arrives > 0]
    known = not seen or not all(map(_unknown, seen))
    harmful = any(point.attack and not point.stopped for point in seen)
    legend = [
        *_legend(height, known=known, reaching=BAD if harmful or not seen else ACCENT),
        _scale_words(end, in_bits=in_bits, estimated=known),
    ]
    if clients is not None:
        lines.append(clients[0])
        legend.append(clients[1])
    return [[*line, ("  ", TEXT), *fit(words, LEGEND - 2)] for line, words in zip(lines, legend, strict=True)]


class Graph(Lines):
    """The history graph; a click moves its cursor."""

    def __init__(self) -> None:
        super().__init__("graph")
        self.seconds = COLUMN_SECONDS  # of a column
        self._history = History()
        self._drawn: tuple[object, ...] = ()  # what it was last drawn for

    def write(self, history: History, *, in_bits: bool, cursor: int | None, at: float | None) -> None:
        """Draw at most once a second, and when place, unit or cursor change.

        `at` is the time of the right edge where that isn't now: in a recording, or while paused.
        """
        self._history = history
        end = NOW if at is None else utc(at, "%H:%M:%S")
        wanted = (history.second, self.box, in_bits, cursor, self.seconds, end)
        if wanted != self._drawn:
            self._drawn = wanted
            width, height = self.box.width, self.box.height
            lines = graph_lines(
                history, width, height, in_bits=in_bits, cursor=cursor, seconds=self.seconds, end=end
            )
            self.show(lines)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the column under the pointer."""
        cells, place = self.box.width - _LABEL - LEGEND, event.x - _LABEL
        if 0 <= place < cells and self._history.points:
            last = self._history.second // self.seconds
            self.post_message(Clicked(self, (last - (cells - 1 - place)) * self.seconds))


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


def _scale(most: float, rows: int) -> float:
    """Return the value at the top, which the greatest column doesn't exceed; each label is a round number.

    The middle of an odd number of rows is in no row's corner, so there the rows are a round number each.
    """
    parts = rows if rows % 2 else 1
    power = 1.0
    while power * 10 * parts < most:
        power *= 10
    tops = (step * power * parts for step in _STEPS)
    return next((top for top in tops if most <= top), 10 * power * parts)


def _joined(line: Line) -> Line:
    """Join neighbours of one style: a span for each cell would take most of the time of drawing."""
    return [
        ("".join(glyph for glyph, _ in spans), style)
        for style, spans in groupby(line, key=lambda span: span[1])
    ]


@lru_cache(maxsize=1024)
def _column(part: Part | None, rows: int, top: float) -> tuple[tuple[str, int], ...]:
    """Return the glyphs of a column from its lowest cell; a second later nearly all columns are the same."""
    return tuple(_cell(part, row, rows / top) for row in range(1, rows + 1))


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


def _style(part: int, *, harmful: bool) -> Style:
    if part == 0:
        return BAD if harmful else ACCENT
    return (GOOD, ELSEWHERE, DIM)[part - 1]


def _label(top: float, row: int, rows: int) -> tuple[str, Style]:
    shown = row == rows or 2 * row == rows or (rows % 2 and row % 2)
    written = _ZEROS.sub("", number(top * row / rows)) if shown else ""
    return f"{cut(written, _LABEL - 1):>{_LABEL - 1}}┤", DIM


def _axis(history: History, cells: int, seconds: int) -> Line:
    """Write the time axis; a rule stands where it was installed."""
    axis = ["─"] * cells
    minute = 60 // seconds
    for place in range(cells - 1 - minute, -1, -minute):
        ago = f"┬{(cells - 1 - place) // minute}m"
        axis[place : place + len(ago)] = ago if minute >= _LABELLED else "┬" + "─" * (len(ago) - 1)
    marked = dict(enumerate(axis))
    styles: list[Style] = [DIM] * cells
    last = history.second // seconds
    for rule_id, at in sorted(history.marks.items(), key=lambda mark: mark[1]):
        place = cells - 1 - (last - int(at) // seconds)
        if not 0 <= place < cells:
            continue
        fits = place + len(rule_id) < cells
        begin = place if fits else max(place - len(rule_id), 0)
        text = f"▲{rule_id}" if fits else f"{rule_id}▲"
        for cell, char in zip(range(begin, cells), text, strict=False):
            marked[cell], styles[cell] = char, TITLE
    line: Line = [(f"{'0':>{_LABEL - 1}}┼", DIM)]
    return [*line, *((marked[place], styles[place]) for place in range(cells))]


def _clients(columns: Sequence[Point | None], history: History) -> tuple[Line, Line] | None:
    """Draw how many handshakes clients finish, and say what the highest bar stands for; None: not counted."""
    rates = [point.clients if point is not None else None for point in columns]
    most = max((rate for rate in rates if rate is not None), default=0.0)
    if most <= 0:
        return None
    least = 0.8 * history.before.handshakes if history.before is not None else 0.0  # less is drawn in red
    line: Line = []
    for rate in rates:
        eighths = 0 if rate is None else max(round(8 * rate / most), 1)
        line.append((_EIGHTHS[eighths], BAD if rate is not None and rate < least else GOOD))
    return [(f"{'clients':<{_LABEL}}", DIM), *_joined(line)], [(f"█ {number(most)}/s", DIM)]


def _legend(height: int, *, known: bool, reaching: Style) -> list[Line]:
    """Name the parts, on as many lines as there are above the axis."""
    if not known:
        return [[("█ ", ACCENT), ("recorded", TEXT)], *[[]] * (height - 2)]
    names: Sequence[Line] = (
        [("█ ", reaching), ("reaches you", TEXT)],
        [("▓ ", GOOD), ("my rules", TEXT)],
        [("▒ ", ELSEWHERE), ("other firewall", TEXT)],
        [("░ ", DIM), ("kernel, socket", TEXT)],
    )
    short: Sequence[Line] = (
        [("█ ", reaching), ("you ", TEXT), *names[1]],
        [names[2][0], ("other ", TEXT), names[3][0], ("kern", TEXT)],
    )
    legend = list(names) if height >= 5 else list(short) if height < 4 else [names[0], names[1], short[1]]
    legend += [[]] * (height - 1 - len(legend))
    return legend[: height - 1]


def _scale_words(end: str, *, in_bits: bool, estimated: bool) -> Line:
    """Write beside the axis when it ends, and what the scale counts."""
    unit = "pps" if not in_bits else "bit/s ~" if estimated else "bit/s"
    key = f"  {KEY_MAP.label('graph')} "
    room = LEGEND - 2 - len(end) - len(unit)
    return [(f"{end}{key if len(key) <= room else ' '}", DIM), (unit, TEXT)]
