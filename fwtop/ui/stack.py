"""One column of the history graph: parts that stand on each other, in eighths of a cell.

A cell shows two parts: a block of eighths in the colour of the lower one before that of the upper one. Parts
that are lower than a cell all over the graph lie at the bottom of a cell each, where they never meet the
column's upper edge: so each is seen at its size, and so is the whole. One that is higher elsewhere, and more
than a line here, keeps its place, so that it doesn't jump between neighbouring columns. Of several that are
mere lines each has its turn in neighbouring columns, at the foot: lines higher up look like cuts. Columns
lower than half a cell show the greatest part only.

Without colours a cell shows one part by its glyph: of two each has as many of eight neighbouring columns as
it has eighths, and each of several parts lower than a cell is in a cell of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

EIGHTHS = " ▁▂▃▄▅▆▇█"
GLYPHS = "█▓▒░"  # of the parts
_LINE = 2  # eighths: a part that is no higher looks like a line
TURNS = 24  # after so many columns all has had its turn: eight eighths, or three parts
_EIGHTHS_SHOWN = (0, 4, 2, 6, 1, 5, 3, 7)  # of each of eight columns without colours
Cell = tuple[str, int | None, int | None]  # the glyph, the part that it shows, the part behind
Pieces = list[tuple[int, int]]  # of a cell, from below: the part, and its eighths


def column_cells(
    part: Sequence[float],
    rows: int,
    top: float,
    turn: int,
    high: Collection[int] = (),
    *,
    plain: bool = False,
) -> tuple[Cell, ...]:
    """Return the cells of a column from the lowest; its height stands for `top`.

    `turn` is the column's place among TURNS; `high`: the parts that are a cell high somewhere in the graph;
    `plain`: there are no colours.
    """
    pieces = stacked(part, rows, top, None if plain else turn, high)
    if not plain:
        return tuple(map(_coloured, pieces))
    return tuple(_plain(held, _EIGHTHS_SHOWN[turn % 8], lowest=row == 0) for row, held in enumerate(pieces))


def stacked(
    part: Sequence[float], rows: int, top: float, turn: int | None, high: Collection[int]
) -> list[Pieces]:
    """Divide a column into cells of at most two pieces, which fill all cells but the highest.

    Of the parts lower than a cell it has the one whose turn it is; None: all.
    """
    unit = 8 * rows / top
    sizes = {place: max(round(value * unit), 1) for place, value in enumerate(part) if value > 0}
    if not sizes:
        return [[]] * rows
    most = max(sizes, key=lambda place: part[place])
    low = [place for place in sizes if place != most and sizes[place] < 8]
    # Two beside each other don't fit in a cell; above another line a line would fill the cell.
    kept = next((place for place in low if place in high and sizes[place] > _LINE), None)
    thin = [place for place in low if place != kept]
    lines = [place for place in thin if sizes[place] <= _LINE]
    if turn is not None and len(lines) > 1:
        for place in lines:
            if place != lines[turn % len(lines)]:
                thin.remove(place)
                del sizes[place]
    whole = min(max(round(sum(part) * unit), 1), 8 * rows)
    sizes[most] = max(whole - sum(sizes.values()) + sizes[most], 1)
    rest = [[place, sizes[place]] for place in sizes if place not in thin]
    return [_filled(min(max(whole - 8 * row, 0), 8), sizes, thin, rest, low=row == 0) for row in range(rows)]


def _filled(room: int, sizes: dict[int, int], thin: list[int], rest: list[list[int]], *, low: bool) -> Pieces:
    """Take so many eighths from what is left to draw: a thin part, and of the others the lowest."""
    pieces: Pieces = []
    if thin and room >= (4 if low else 8):
        place = thin.pop(0)
        pieces.append((place, sizes[place]))
        room -= sizes[place]
    while room > 0:
        place, size = rest[0]
        is_last = bool(pieces) or len(rest) == 1
        taken = room if is_last else min(size, room)
        pieces.append((place, taken))
        room -= taken
        rest[0][1] -= taken
        while rest[0][1] <= 0 and len(rest) > 1:  # what the last one took too much, the next one lacks
            over = rest.pop(0)[1]
            rest[0][1] += over
    return pieces


def _coloured(pieces: Pieces) -> Cell:
    if not pieces:
        return " ", None, None
    part, eighths = pieces[0]
    if len(pieces) > 1:
        return EIGHTHS[eighths], part, pieces[1][0]
    return EIGHTHS[eighths], part, None


def _plain(pieces: Pieces, eighth: int, *, lowest: bool) -> Cell:
    filled = sum(eighths for _, eighths in pieces)
    if not pieces or (filled < 4 and not lowest and pieces[0][0]):
        return " ", None, None
    part, eighths = pieces[0]
    if part == 0 and len(pieces) == 1:
        return EIGHTHS[eighths], part, None
    part = part if eighth * filled < eighths * 8 else pieces[-1][0]
    return GLYPHS[part], part, None
