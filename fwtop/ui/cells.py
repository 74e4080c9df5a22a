"""Styled text on a line: built as (text, style) pairs, fitted to a width, turned into strips.

Nothing here parses markup, and every character is one cell wide (fwtop.model.text sees to that), so
the width of a text is its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from fwtop.ui.format import cut
from fwtop.ui.palette import TEXT

Span = tuple[str, Style]
Line = list[Span]


def width_of(line: Iterable[Span]) -> int:
    """Return the cells that a line takes."""
    return sum(len(text) for text, _ in line)


def fit(line: Sequence[Span], width: int, *, right: bool = False) -> Line:
    """Pad or shorten a line to exactly `width` cells; shortening leaves an ellipsis."""
    used = width_of(line)
    if used <= width:
        pad: Line = [(" " * (width - used), TEXT)] if used < width else []
        return [*pad, *line] if right else [*line, *pad]
    fitted: Line = []
    left = width
    for text, style in line:
        if len(text) >= left:  # it crosses the edge, or ends there with more to come
            fitted.append((cut(text + "…", left), style))
            break
        fitted.append((text, style))
        left -= len(text)
    return fitted


def spread(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """Put one line at the left edge and one at the right; the right one gives way first."""
    room = width - width_of(left)
    if width_of(right) + 1 > room:
        return fit(left, width)
    return [*left, (" " * (room - width_of(right)), TEXT), *right]


def strip_of(line: Sequence[Span], width: int, *, over: Style | None = None) -> Strip:
    """Turn a line into a strip of `width` cells; `over` replaces all styles (a selected row).

    Neighbours of one style are joined, and spaces take the style before them: every change of style
    costs escape sequences on the way to the terminal.
    """
    merged: list[tuple[str, Style]] = []
    for text, style in fit(line, width):
        shown = over if over is not None else style
        if merged and (merged[-1][1] == shown or _carries_on(text, shown, merged[-1][1])):
            merged[-1] = (merged[-1][0] + text, merged[-1][1])
        elif text:
            merged.append((text, TEXT if _carries_on(text, shown, TEXT) else shown))
    return Strip([Segment(text, style) for text, style in merged], width)


def _carries_on(text: str, style: Style, before: Style) -> bool:
    return text.isspace() and not style.reverse and not before.reverse


def last_difference(old: Strip, new: Strip) -> int:
    """Return how many cells from the left must be painted again to get from `old` to `new`."""
    before, after = _flat(old), _flat(new)
    if len(before) != len(after):
        return max(len(before), len(after))
    for index in range(len(after) - 1, -1, -1):
        if before[index] != after[index]:
            return index + 1
    return 0


def _flat(strip: Strip) -> list[tuple[str, Style | None]]:
    return [(char, segment.style) for segment in strip for char in segment.text]
