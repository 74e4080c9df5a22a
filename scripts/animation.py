"""Films of a terminal: an animated SVG, and an asciicast (asciinema's format, version 2)."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

_CELL, _LINE = 8.43, 18  # pixels; DejaVu Sans Mono of 14 px
_MARGIN = 12
_DIM = 0.45  # of the background

# What the sixteen colours look like in pictures made from the screen.
PICTURE_THEME = TerminalTheme(
    (16, 20, 26),
    (214, 221, 230),
    [
        (38, 45, 55), (236, 95, 86), (98, 186, 116), (222, 174, 78),
        (98, 152, 232), (186, 130, 214), (84, 184, 200), (214, 221, 230),
    ],
    [
        (110, 122, 138), (250, 125, 115), (130, 210, 146), (240, 200, 110),
        (130, 176, 246), (208, 160, 232), (120, 208, 222), (245, 248, 252),
    ],
)  # fmt: skip


class Frame(Struct, frozen=True):
    """The screen from `at` seconds on, as lines with ANSI colours."""

    at: float
    lines: tuple[str, ...]


def asciicast(frames: Sequence[Frame], columns: int, rows: int, title: str) -> str:
    """Return a film for `asciinema play`."""
    head = {"version": 2, "width": columns, "height": rows, "title": title}
    shown = [[round(frame.at, 2), "o", "\x1b[H" + "\r\n".join(_whole(frame.lines))] for frame in frames]
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in (head, *shown))


def _whole(lines: Sequence[str]) -> Iterator[str]:
    return (f"{line}\x1b[0m\x1b[K" for line in lines)


def animated_svg(frames: Sequence[Frame], columns: int, rows: int, theme: TerminalTheme, last: float) -> str:
    """Return a film that repeats; the last frame stays for `last` seconds.

    A line that stays the same over several frames is drawn once: it is visible from its first to its last.
    Viewers that don't animate show the last frame.
    """
    whole = frames[-1].at + last
    classes: dict[str, str] = {}
    parts: list[str] = []
    for row in range(rows):
        for line, begin, end in _spells(frames, row, whole):
            drawn = "".join(_drawn(line, row, columns, theme, classes))
            if drawn:
                hidden = ' visibility="hidden"' if end < whole else ""
                parts.append(f"<g{hidden}>{drawn}{_animation(begin, end, whole)}</g>\n")
    width, height = columns * _CELL + 2 * _MARGIN, rows * _LINE + 2 * _MARGIN
    styles = "".join(f".{name}{{{css}}}" for css, name in classes.items())
    font = 'font:14px "DejaVu Sans Mono",Menlo,Consolas,monospace;white-space:pre'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" xml:space="preserve">'
        f"<style>text{{{font}}}{styles}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{theme.background_color.hex}"/>\n'
        f'<g transform="translate({_MARGIN} {_MARGIN})">\n{"".join(parts)}</g></svg>\n'
    )


def _spells(frames: Sequence[Frame], row: int, whole: float) -> Iterator[tuple[str, float, float]]:
    """Yield what a row shows, from when to when."""
    shown = [frame.lines[row] if row < len(frame.lines) else "" for frame in frames]
    begin = 0
    for place in range(1, len(frames) + 1):
        if place == len(frames) or shown[place] != shown[begin]:
            yield shown[begin], frames[begin].at, frames[place].at if place < len(frames) else whole
            begin = place


def _animation(begin: float, end: float, whole: float) -> str:
    if begin <= 0 and end >= whole:
        return ""
    steps = [(0.0, "hidden" if begin > 0 else "visible")]
    steps += [(begin, "visible")] if begin > 0 else []
    steps += [(end, "hidden")] if end < whole else []
    times = ";".join(f"{at / whole:.4f}".rstrip("0").rstrip(".") for at, _ in steps)
    values = ";".join(value for _, value in steps)
    return (
        f'<animate attributeName="visibility" calcMode="discrete" dur="{whole:.1f}s" '
        f'repeatCount="indefinite" keyTimes="{times}" values="{values}"/>'
    )


def _drawn(line: str, row: int, columns: int, theme: TerminalTheme, classes: dict[str, str]) -> Iterator[str]:
    """Yield rectangles and texts of a line; each style gets a class, by its name in `classes`."""
    x, y = 0, row * _LINE
    for segment in _segments(line, columns):
        text, style = segment.text, segment.style or Style.null()
        front, back = _colours(style, theme)
        if back != theme.background_color:
            box = f'x="{x * _CELL:.1f}" y="{y}" width="{len(text) * _CELL:.1f}" height="{_LINE}"'
            yield f'<rect {box} class="{_class(classes, f"fill:{back.hex}")}"/>'
        if text.strip():
            css = f"fill:{front.hex}" + (";font-weight:bold" if style.bold else "")
            start = len(text) - len(text.lstrip())
            shown = text.strip()
            place = f'x="{(x + start) * _CELL:.1f}" y="{y + 14}" textLength="{len(shown) * _CELL:.1f}"'
            yield f'<text {place} class="{_class(classes, css)}">{html.escape(shown)}</text>'
        x += len(text)


def _class(classes: dict[str, str], css: str) -> str:
    return classes.setdefault(css, f"s{len(classes)}")


def _segments(line: str, columns: int) -> list[Segment]:
    console = Console(width=columns, file=io.StringIO(), color_system="truecolor", legacy_windows=False)
    text = Text.from_ansi(line, no_wrap=True, end="")
    return [*Segment.simplify(console.render(text))]


def _colours(style: Style, theme: TerminalTheme) -> tuple[ColorTriplet, ColorTriplet]:
    front = style.color.get_truecolor(theme) if style.color else theme.foreground_color
    back = style.bgcolor.get_truecolor(theme, foreground=False) if style.bgcolor else theme.background_color
    if style.reverse:
        front, back = back, front
    return (blend_rgb(front, back, _DIM) if style.dim else front), back
