"""Paragraphs, and texts beside their labels, as dialogs and details show them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.style import Style

from fwtop.ui.drawing.format import wrap
from fwtop.ui.drawing.style import DIM, TEXT, Line

DETAILS_WIDTH = 74  # fits a dialog at 80 columns
LABEL = 13


def paragraph(text: str, width: int, style: Style = TEXT) -> list[Line]:
    """Wrap a text into lines of one style."""
    return [[(line, style)] for line in wrap(text, width)]


def labelled(label: str, line: Line, *, width: int = 10) -> Line:
    """Set a line beside its dim label."""
    return [(label.ljust(width), DIM), *line]


def detail(label: str, text: str) -> Line:
    """Set a plain text beside its label."""
    return labelled(label, [(text, TEXT)], width=LABEL)


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
