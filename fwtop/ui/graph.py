"""The history graph: what became of the packets, the newest at the right edge; functions and a widget.

It fits what was seen: columns are narrow at first and widen until they last as long as the operator set;
then it moves. The whole of a capture always fits. A column shows its busiest moment, as it was: nothing is
averaged away. The bits of a part are estimated by its share of the packets: the ledger counts packets only.

A label's mark is at the upper edge of its row, where the bars that it measures end, and bars stand on zero's.
On the logarithmic scale each edge between two parts stands at its value, so the lowest part, what reaches
services, is seen when it is a thousandth of the whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Literal, get_args

from msgspec import Struct
from rich.color import Color
from rich.style import Style
from textual import events

from fwtop.model.traffic.session import EventKind
from fwtop.render.numbers import duration, utc
from fwtop.ui.format import cut, number
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.layout import Clicked, Lines
from fwtop.ui.lists.history import STEP, History, Point
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.stack import EIGHTHS, GLYPHS, TURNS, column_cells
from fwtop.ui.style import ACCENT, BAD, DIM, ELSEWHERE, GOOD, PALETTE, TEXT, TITLE, Line, Span, fit

COLUMN_SECONDS = 2.0
_FINEST_SECONDS = 0.1  # of a column
_WIDEN = 1.1  # columns widen by steps, so that they seldom move
LABEL = 7  # cells of the scale
LEGEND = 18
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_LABEL_SECONDS = (5, 10, 15, 30, 60, 120, 300, 600)  # between two labels of the axis
_LABEL_CELLS = 12  # at least
NOW = "now"
Unit = Literal["packets", "bits", "log"]  # what the height stands for; the logarithm is of the packets
UNITS: tuple[Unit, ...] = get_args(Unit)
_EDGE = "▔"  # the upper edge of a row: where zero is, and a label's value
_ZEROS = re.compile(r"\.0+(?=\D|$)|(?<=\.\d)0(?=\D|$)")  # the scale is round: 50k, not 50.0k
Part = tuple[float, ...]  # reaches you, my rules, other firewall, kernel


class Columns(Struct, frozen=True):
    """The history as columns; column n is of the time from n times `seconds` on."""

    points: list[Point | None]
    seconds: float
    last: int  # the number of the one at the right edge

    def place(self, at: float) -> int:
        """Return the cell of a time, which may be outside."""
        return len(self.points) - 1 - self.last + math.floor(at / self.seconds)

    def time(self, place: int) -> float:
        """Return the middle of the time that a cell stands for."""
        return (self.last - len(self.points) + 1 + place + 0.5) * self.seconds


def fold(history: History, cells: int, most: float) -> Columns:
    """Fit the history into so many cells, each the busiest point of at most so many seconds."""
    points, step = list(history.points), history.seconds
    wanted = max(len(points) * step / cells, _FINEST_SECONDS)
    seconds = min(_WIDEN ** math.ceil(math.log(wanted, _WIDEN) - 1e-9), most)
    first, last = history.step - len(points) + 1, math.ceil(history.ends / seconds - 1e-6) - 1
    columns: list[Point | None] = []
    for column in range(last - cells + 1, last + 1):
        begin = math.floor(column * seconds / step + 1e-6)
        end = math.ceil((column + 1) * seconds / step - 1e-6)
        held = points[max(begin - first, 0) : max(end - first, 0)]
        columns.append(max(held, key=lambda point: point.flow.arrives) if held else None)
    return Columns(columns, seconds, last)


def graph_lines(
    history: History,
    log: Sequence[LogEntry],
    width: int,
    height: int,
    *,
    unit: Unit = "packets",
    cursor: float | None = None,
    seconds: float = COLUMN_SECONDS,
    end: str = NOW,
) -> list[Line]:
    """Draw `height` lines, below them the time axis with what became of rules, and what clients get.

    The column of the time `cursor` stands out; `end` says when the right edge is.
    """
    cells, rows = width - LABEL - LEGEND, height - 1
    if cells < 1 or rows < 1:
        return []
    columns = fold(history, cells, seconds)
    clients = _clients(columns.points, history) if height >= 7 else None  # on the last line
    if clients is not None:
        rows, height = rows - 1, height - 1
    parts, is_log = [_parts(one, unit) for one in columns.points], unit == "log"
    most = max(map(sum, parts), default=0.0)
    top = float(10 ** math.ceil(math.log10(max(most, 10.0)))) if is_log else _scale(most, rows)
    marked = -1 if cursor is None else columns.place(cursor)
    heights = [_logarithms(one, top) for one in parts] if is_log else parts
    drawn = _area(columns, heights, rows, 1.0 if is_log else top, marked, in_place=is_log)
    lines = [
        [_label(top, row + 1, rows, unit), *_joined(line)] for row, line in reversed([*enumerate(drawn)])
    ]
    lines.append(
        [(f"{1 if is_log else 0:>{LABEL - 1}}{_EDGE}", DIM), *_joined(_axis(columns, _marks(columns, log)))]
    )
    seen = [point for point in columns.points if point is not None and point.flow.arrives > 0]
    known = not seen or not all(map(_unknown, seen))
    harmful = any(point.attack and not point.stopped for point in seen)
    legend = [
        *_legend(height, known=known, reaching=BAD if harmful or not seen else ACCENT),
        _scale_words(end, unit, estimated=known),
    ]
    if clients is not None:
        lines.append(clients[0])
        legend.append(clients[1])
    return [[*line, ("  ", TEXT), *fit(words, LEGEND - 2)] for line, words in zip(lines, legend, strict=True)]


class Graph(Lines):
    """The history graph; a click moves its cursor."""

    def __init__(self) -> None:
        super().__init__("graph")
        self.seconds = COLUMN_SECONDS  # of a column, at most, as was set
        self._most = COLUMN_SECONDS  # and as was last drawn
        self._history = History()
        self._drawn: tuple[object, ...] = ()  # what it was last drawn for

    def write(
        self,
        history: History,
        log: Sequence[LogEntry],
        *,
        unit: Unit,
        cursor: float | None,
        at: float | None,
        window: float,
    ) -> None:
        """Draw at most once a second, and when place, unit or cursor change.

        `at` is the time of the right edge where that isn't now: in a recording. At least the `window` that
        rates are of fits in: of a capture it may be the whole.
        """
        self._history = history
        cells = max(self.box.width - LABEL - LEGEND, 1)
        self._most = most = max(self.seconds, window * _WIDEN / cells)
        end = NOW if at is None else utc(at, "%H:%M:%S")
        look = (PALETTE.colourless, self.box, unit, cursor, most, end)
        wanted = (int(history.ends - STEP), *look)
        if wanted != self._drawn:
            self._drawn = wanted
            width, height = self.box.width, self.box.height
            self.show(
                graph_lines(history, log, width, height, unit=unit, cursor=cursor, seconds=most, end=end)
            )

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the column under the pointer."""
        cells, place = self.box.width - LABEL - LEGEND, event.x - LABEL
        if 0 <= place < cells and self._history.points:
            self.post_message(Clicked(self, fold(self._history, cells, self._most).time(place)))


def _parts(point: Point | None, unit: Unit) -> Part:
    if point is None:
        return 0.0, 0.0, 0.0, 0.0
    flow, in_bits = point.flow, unit == "bits"
    if _unknown(point):
        return (flow.bps if in_bits else flow.arrives), 0.0, 0.0, 0.0
    factor = flow.bps / flow.arrives if in_bits and flow.arrives > 1e-9 else 1.0
    return flow.reaches * factor, flow.mine * factor, flow.other * factor, flow.kernel * factor


def _logarithms(parts: Part, top: float) -> Part:
    """Return the parts' heights where the upper edge of each stands at its value, from 1 to `top`; 1: all."""
    sums = [max(math.log10(max(value, 1.0)) / math.log10(top), 1e-9) for value in accumulate(parts)]
    edges = zip((0.0, *sums), sums, parts, strict=False)
    return tuple(max(edge - before, 1e-9) if part > 0 else 0.0 for before, edge, part in edges)


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


_COLOURS = (ACCENT, GOOD, ELSEWHERE, Style(color="bright_black"))


def _area(
    columns: Columns, parts: Sequence[Part], rows: int, top: float, marked: int, *, in_place: bool = False
) -> list[Line]:
    """Draw the cells, the lowest row first; the column `marked` stands out; `in_place`: low parts, too."""
    drawn: list[Sequence[Span]] = []
    most = [max(part) for part in zip(*parts, strict=True)]
    high = tuple(place for place, value in enumerate(most) if in_place or value * rows >= top)
    for place, (point, part) in enumerate(zip(columns.points, parts, strict=True)):
        harmful = point is not None and point.attack and not point.stopped
        turn = place % TURNS  # of the place: what takes turns at the foot stands still while columns move
        column = _column(part, rows, top, turn, high, harmful=harmful, plain=PALETTE.colourless)
        if place == marked:
            column = [("│", TITLE) if cell == _NOTHING else (cell[0], _REVERSE + cell[1]) for cell in column]
        drawn.append(column)
    return [list(row) for row in zip(*drawn, strict=True)]


_NOTHING: Span = (" ", TEXT)
_REVERSE = Style(reverse=True)


@lru_cache(maxsize=2048)  # a second later most columns are the same
def _column(
    part: Part, rows: int, top: float, turn: int, high: Collection[int], *, harmful: bool, plain: bool
) -> Sequence[Span]:
    """Draw a column, the lowest cell first, in colours that are never bold: they are behind others, too."""
    colours = [one.color for one in (BAD if harmful else _COLOURS[0], *_COLOURS[1:])]
    return [
        (glyph, _style(colours[one], colours[behind] if behind is not None else None))
        if one is not None
        else _NOTHING
        for glyph, one, behind in column_cells(part, rows, top, turn, high=high, plain=plain)
    ]


@lru_cache(maxsize=64)  # spans of one style are joined, which is faster where it's the same object
def _style(colour: Color | None, behind: Color | None) -> Style:
    return Style.from_color(colour, behind)


def _label(top: float, row: int, rows: int, unit: Unit) -> Span:
    if not (row == rows or 2 * row == rows or (rows % 2 and row % 2)):
        return " " * LABEL, DIM
    value = float(f"{top ** (row / rows):.1e}") if unit == "log" else top * row / rows
    return f"{cut(_ZEROS.sub('', number(value)), LABEL - 1):>{LABEL - 1}}{_EDGE}", DIM


_MARKS: dict[str, Span] = {
    EventKind.RULE_APPLIED: ("▲", TITLE),
    EventKind.RULE_UNDONE: ("▼", TITLE),
    EventKind.RULE_EXPIRED: ("✖", BAD),
}


def _marks(columns: Columns, log: Sequence[LogEntry]) -> Iterable[tuple[int, str, list[str], Style]]:
    """Return the cells at which rules were installed, removed or expired, with their names; newest first."""
    found: dict[tuple[int, str, Style], list[str]] = {}
    begin = columns.time(0) - columns.seconds
    for entry in reversed(log):
        if entry.at < begin:
            break
        if glyph := _MARKS.get(entry.kind):
            place = min(columns.place(entry.at), len(columns.points) - 1)
            found.setdefault((place, *glyph), []).append(entry.subject)
    return [(place, glyph, names, style) for (place, glyph, style), names in found.items()]


def _axis(columns: Columns, marks: Iterable[tuple[int, str, list[str], Style]]) -> Line:
    """Write the time axis: the marks of rules, and labels where they leave room."""
    cells = len(columns.points)
    axis: Line = [(_EDGE, DIM)] * cells
    taken = [False] * (cells + 2)  # with the gap after a text, and one before the first cell

    def put(place: int, text: str, style: Style) -> bool:
        end = place + len(text)
        if place < 0 or end > cells or any(taken[place : end + 2]):
            return False
        axis[place:end] = [(char, style) for char in text]
        taken[place + 1 : end + 1] = [True] * len(text)
        return True

    for place, glyph, names, style in marks:
        name = names[-1] if len(names) == 1 else f"{names[-1]}+{len(names) - 1}"
        right, left = (place, f"{glyph}{name}"), (place - len(name), f"{name}{glyph}")
        any(put(begin, text, style) for begin, text in (right, left, (place, glyph), (place - 2, glyph)))
    every = next((one for one in _LABEL_SECONDS if one >= _LABEL_CELLS * columns.seconds), _LABEL_SECONDS[-1])
    for ago in range(every, math.ceil(cells * columns.seconds), every):
        put(cells - 1 - round(ago / columns.seconds), f"╹{duration(ago).replace(' ', '')}", DIM)
    return axis


def _clients(columns: Sequence[Point | None], history: History) -> tuple[Line, Line] | None:
    """Draw how many handshakes clients finish, and say what the highest bar stands for; None: not counted."""
    rates = [point.clients if point is not None else None for point in columns]
    most = max((rate for rate in rates if rate is not None), default=0.0)
    if most <= 0:
        return None
    least = 0.8 * history.before.handshakes if history.before is not None else 0.0  # less is drawn in red
    line: Line = []
    for rate in rates:
        eighths = max(round(8 * rate / most), 1) if rate else 0
        line.append((EIGHTHS[eighths], BAD if rate is not None and rate < least else GOOD))
    return [(f"{'clients':<{LABEL}}", DIM), *_joined(line)], [(f"  0–{number(most)}/s", DIM)]


def _legend(height: int, *, known: bool, reaching: Style) -> list[Line]:
    """Name the parts, on as many lines as there are above the axis."""
    if not known:
        return [[("█ ", ACCENT), ("recorded", TEXT)], *[[]] * (height - 2)]
    glyphs = GLYPHS if PALETTE.colourless else EIGHTHS[-1] * len(GLYPHS)
    styles = reaching, GOOD, ELSEWHERE, Style.from_color(_COLOURS[3].color)
    words = "reaches you", "my rules", "other firewall", "kernel, socket"
    names: list[Line] = [
        [(f"{glyph} ", style), (name, TEXT)] for glyph, style, name in zip(glyphs, styles, words, strict=True)
    ]
    return [*names, *[[]] * height][: height - 1]


def _scale_words(end: str, unit: Unit, *, estimated: bool) -> Line:
    """Write beside the axis when it ends, and what the scale counts."""
    counts = {"packets": "pps", "log": "pps log", "bits": "bit/s ~" if estimated else "bit/s"}[unit]
    key = f"  {KEY_MAP.label('graph')} "
    room = LEGEND - 2 - len(end) - len(counts)
    return [(f"{end}{key if len(key) <= room else ' '}", DIM), (counts, TEXT)]
