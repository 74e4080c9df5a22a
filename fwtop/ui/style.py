"""Themes, styles by meaning, styled text fitted to a width, paragraphs, and texts beside their labels.

Styles are from the terminal's sixteen colours; a theme is a table from these to those that are shown. Colour
alone never carries information: attributes (bold, dim, reverse) and words do, so NO_COLOR works. Default text
has no escape sequences, which saves bytes on a slow link.

Nothing here parses markup. Every character is one cell wide (fwtop.model.text guarantees it), so the
width of a text is its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.theme import Theme

from fwtop.model.text import safe_text
from fwtop.ui.format import cut, wrap


class ScreenTheme(Struct, frozen=True):
    """A theme: `colours` maps names of ANSI colours to what is shown; the others stay."""

    name: str
    help: str
    colours: Mapping[str, str]
    dim: str = ""  # the colour of dim text, instead of the terminal's attribute
    bright: bool = False  # no dim text at all, and colours are bold
    colourless: bool = False


_NAMES = ("red", "yellow", "green", "cyan", "magenta", "blue")


def _numbered(*numbers: int) -> dict[str, str]:
    return {name: f"color({number})" for name, number in zip(_NAMES, numbers, strict=True)}


DEFAULT_THEME = "ansi"
THEMES = {
    theme.name: theme
    for theme in (
        ScreenTheme("ansi", "the terminal's own sixteen colours", {}),
        ScreenTheme(
            "dark",
            "soft colours on a dark background",
            _numbered(203, 221, 121, 75, 176, 69),
            dim="color(245)",
        ),
        ScreenTheme(
            "light",
            "dark colours on a light background",
            _numbered(160, 172, 22, 26, 90, 19),
            dim="color(242)",
        ),
        ScreenTheme(
            "contrast",
            "bright and bold, nothing dim",
            {name: f"bright_{name}" for name in _NAMES} | {"bright_black": "white"},
            bright=True,
        ),
        ScreenTheme(
            "deuteranopia",
            "orange and blue instead of red and green",
            _numbered(208, 229, 33, 80, 207, 75),
            dim="color(245)",
        ),
        ScreenTheme("mono", "no colours: bold, dim and reversed text only", {}, colourless=True),
    )
}


class Palette:
    """The theme in use. There is one terminal to a process, so there is one of it: PALETTE."""

    def __init__(self) -> None:
        self._theme = THEMES[DEFAULT_THEME]
        self.no_color = False  # the terminal gets no colours, whatever the theme

    @property
    def name(self) -> str:
        """The theme's name."""
        return self._theme.name

    @property
    def colourless(self) -> bool:
        """Whether nothing has a colour: as the theme or NO_COLOR says."""
        return self._theme.colourless or self.no_color

    def use(self, name: str) -> None:
        """Change the theme."""
        self._theme = THEMES[name]

    def show(self, style: Style) -> Style:
        """Return what a style looks like."""
        return style if self._theme.name == DEFAULT_THEME else themed(self._theme.name, style)


PALETTE = Palette()


@lru_cache(maxsize=512)
def themed(theme_name: str, style: Style) -> Style:
    """Return a style in a theme's colours."""
    theme = THEMES[theme_name]
    colour, background = _colour(theme, style.color), _colour(theme, style.bgcolor)
    dim, bold = style.dim, style.bold
    if dim and colour is None and theme.dim and not style.reverse:
        colour, dim = Color.parse(theme.dim), None
    if theme.bright:
        bold, dim = (True if colour is not None or bold else None), None
    return Style(
        color=colour,
        bgcolor=background,
        bold=bold,
        dim=dim,
        italic=style.italic,
        underline=style.underline,
        reverse=style.reverse,
        strike=style.strike,
    )


def _colour(theme: ScreenTheme, colour: Color | None) -> Color | None:
    if colour is None or theme.colourless:
        return None
    shown = theme.colours.get(colour.name)
    return colour if shown is None else Color.parse(shown)


TEXT = Style.null()
DIM = Style(dim=True)
STRONG = Style(bold=True)
ACCENT = Style(color="cyan")
TITLE = Style(color="cyan", bold=True)
BAR = Style(color="cyan")
BAD = Style(color="red", bold=True)
WARN = Style(color="yellow", bold=True)
GOOD = Style(color="green")
ALARM = Style(color="red", bold=True, reverse=True)
NOTICE = Style(color="yellow", bold=True, reverse=True)
CALM = Style(color="green", bold=True, reverse=True)
FOREIGN = Style(color="magenta", bold=True, reverse=True)
ELSEWHERE = Style(color="magenta")
BRAND = Style(color="cyan", bold=True, reverse=True)
SELECTED = Style(color="cyan", reverse=True)
BUTTON = Style(reverse=True, bold=True)
BUTTON_BAD = Style(color="red", reverse=True, bold=True)

THEME = Theme(
    name="fwtop",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_cyan",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_cyan",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "input-cursor-background": "ansi_white",
        "input-cursor-foreground": "ansi_black",
        "input-selection-background": "ansi_cyan",
        "input-selection-foreground": "ansi_black",
        "screen-selection-background": "ansi_cyan",
        "screen-selection-foreground": "ansi_black",
    },
)

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


def wrap_line(line: Sequence[Span], width: int) -> list[Line]:
    """Break a line at spaces, and inside words longer than `width`; styles stay with their words."""
    rows: list[Line] = [[]]
    used = 0
    for word, style in _words(line):
        rest = word
        if used and used + len(rest.rstrip()) > width:
            rows.append([])
            used = 0
        while len(rest.rstrip()) > width > 0:
            rows[-1].append((rest[:width], style))
            rest = rest[width:]
            rows.append([])
            used = 0
        if rest and (used or rest.strip()):
            rows[-1].append((rest, style))
            used = width_of(rows[-1])
    return [[*row[:-1], (row[-1][0].rstrip(), row[-1][1])] for row in rows if row] or [[]]


def _words(line: Sequence[Span]) -> Iterable[Span]:
    """Split spans into words, each with the spaces that follow it."""
    for text, style in line:
        start = 0
        for end in range(1, len(text) + 1):
            if end == len(text) or (text[end - 1] == " " and text[end] != " "):
                yield text[start:end], style
                start = end


def beside(parts: Iterable[Line], room: int) -> Line:
    """Put parts beside one another, without those that there is no room for."""
    line: Line = []
    for part in parts:
        if width_of(line) + width_of(part) + 2 <= room:
            line += [("  ", TEXT), *part] if line else part
    return line


def spread(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """Put one line at the left edge and one at the right; the right one gives way first."""
    room = width - width_of(left)
    if width_of(right) + 1 > room:
        return fit(left, width)
    return [*left, (" " * (room - width_of(right)), TEXT), *right]


def strip_of(line: Sequence[Span], width: int, *, over: Style | None = None) -> Strip:
    """Turn a line into a strip of `width` cells; `over` replaces all styles (a selected row).

    Adjacent spans of one style are merged, and spaces take the style before them: every style change
    costs escape sequences. Neither control characters nor those that aren't one cell wide get past this
    function.
    """
    merged: list[tuple[str, Style]] = []
    for raw, style in fit(line, width):
        text = raw if _is_harmless(raw) else safe_text(raw, limit=len(raw))  # last line of defence
        shown = PALETTE.show(over if over is not None else style)
        if merged and (merged[-1][1] == shown or _carries_on(text, shown, merged[-1][1])):
            merged[-1] = (merged[-1][0] + text, merged[-1][1])
        elif text:
            merged.append((text, TEXT if _carries_on(text, shown, TEXT) else shown))
    return Strip([Segment(text, style) for text, style in merged], width)


def _is_harmless(text: str) -> bool:
    return text.isprintable() and (text.isascii() or all(map(_is_one_cell, set(text))))


@lru_cache(4096)
def _is_one_cell(character: str) -> bool:
    return cell_len(character) == 1


def _carries_on(text: str, style: Style, before: Style) -> bool:
    return text.isspace() and not any(one.reverse or one.bgcolor for one in (style, before))


Cell = tuple[str, Style | None]


def changed_cells(old: Strip, new: Strip) -> list[tuple[int, int]]:
    """Return where two lines differ, as first cell and the one after the last of each part."""
    before, after = cells_of(old), cells_of(new)
    if len(before) != len(after):
        return [(0, max(len(before), len(after)))]
    return differing(before, after)


def differing(before: Sequence[Cell | None], after: Sequence[Cell | None]) -> list[tuple[int, int]]:
    """Return where equally many cells differ, as `changed_cells`; a cell that isn't known differs."""
    parts: list[tuple[int, int]] = []
    for place, (was, is_) in enumerate(zip(before, after, strict=True)):
        if was == is_ and is_ is not None:
            continue
        if parts and place - parts[-1][1] < 8:  # moving the cursor costs more
            parts[-1] = parts[-1][0], place + 1
        else:
            parts.append((place, place + 1))
    return parts


def cells_of(strip: Strip) -> list[Cell]:
    """Return a character and its style for each cell."""
    return [(char, segment.style) for segment in strip for char in segment.text]


DETAILS_WIDTH = 74  # fits a dialog at 80 columns
LABEL = 13


def paragraph(text: str, width: int, style: Style = TEXT) -> list[Line]:
    """Wrap a text into lines of one style."""
    return [[(line, style)] for line in wrap(text, width)]


def labelled(label: str, line: Line) -> Line:
    """Set a line beside its dim label."""
    return [(label.ljust(LABEL), DIM), *line]


def detail(label: str, text: str) -> Line:
    """Set a plain text beside its label."""
    return labelled(label, [(text, TEXT)])


def wrapped(label: str, text: str) -> list[Line]:
    """Set a text of several lines beside its label."""
    rows = wrap(text, DETAILS_WIDTH - LABEL)
    return [detail(label if number_of == 0 else "", row) for number_of, row in enumerate(rows)]


def facts(*known: tuple[str, str]) -> list[Line]:
    """Set texts beside their labels, without those that are empty."""
    return [line for label, text in known if text for line in wrapped(label, text)]


def listed(label: str, texts: Iterable[str]) -> list[Line]:
    """Set several texts beside the label of all."""
    return facts(*(("" if place else label, text) for place, text in enumerate(texts)))
