"""Colours by meaning, from the terminal's own sixteen, so that every terminal's theme is respected.

Nothing is said by colour alone: attributes (bold, dim, reverse) and words carry it without colour
(NO_COLOR) too. Default text has no escape sequence at all, which keeps a slow link quiet.
"""

from __future__ import annotations

from rich.style import Style
from rich.terminal_theme import TerminalTheme
from textual.theme import Theme

TEXT = Style.null()
DIM = Style(dim=True)
STRONG = Style(bold=True)
ACCENT = Style(color="cyan")
TITLE = Style(color="cyan", bold=True)
BAR = Style(color="cyan")
BAD = Style(color="red", bold=True)
BAD_BAR = Style(color="red")
WARN = Style(color="yellow", bold=True)
GOOD = Style(color="green")
ALARM = Style(color="red", bold=True, reverse=True)
NOTICE = Style(color="yellow", bold=True, reverse=True)
CALM = Style(color="green", bold=True, reverse=True)
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

# What the sixteen colours look like in pictures made from the screen.
PICTURE_THEME = TerminalTheme(
    (16, 20, 26),
    (214, 221, 230),
    [
        (38, 45, 55),
        (236, 95, 86),
        (98, 186, 116),
        (222, 174, 78),
        (98, 152, 232),
        (186, 130, 214),
        (84, 184, 200),
        (214, 221, 230),
    ],
    [
        (110, 122, 138),
        (250, 125, 115),
        (130, 210, 146),
        (240, 200, 110),
        (130, 176, 246),
        (208, 160, 232),
        (120, 208, 222),
        (245, 248, 252),
    ],
)
