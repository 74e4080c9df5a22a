"""Themes: what the screen's sixteen-colour styles become on another terminal.

Styles are chosen by meaning, in the ANSI colours; a theme is a table from these colours to those that are
shown. Colours beyond the sixteen come from the table of 256 (`color(208)`), which costs fewer bytes than RGB.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct
from rich.color import Color
from rich.style import Style


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
            _numbered(203, 221, 114, 80, 176, 75),
            dim="color(245)",
        ),
        ScreenTheme(
            "light",
            "dark colours on a light background",
            _numbered(160, 130, 28, 25, 90, 19),
            dim="color(242)",
        ),
        ScreenTheme(
            "contrast",
            "bright and bold, nothing dim",
            {name: f"bright_{name}" for name in _NAMES} | {"bright_black": "white"},
            bright=True,
        ),
        ScreenTheme("mono", "no colours: bold, dim and reversed text only", {}, colourless=True),
    )
}


class Palette:
    """The theme in use. There is one terminal to a process, so there is one of it: PALETTE."""

    def __init__(self) -> None:
        self._theme = THEMES[DEFAULT_THEME]

    @property
    def name(self) -> str:
        """The theme's name."""
        return self._theme.name

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
