"""A dialog: a frame of lines over the screen, with a body that scrolls and a foot that stays."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from fwtop.ui.cells import Line, fit
from fwtop.ui.format import wrap
from fwtop.ui.layout import Box
from fwtop.ui.palette import ACCENT, DIM, TEXT, TITLE
from fwtop.ui.widgets import Lines

Result = TypeVar("Result")
FACTS_WIDTH = 74  # fits the dialog at 80 columns
LABEL = 13


class Sheet(ModalScreen[Result], inherit_bindings=False):
    """Base of all dialogs; a subclass composes `body` and `foot` and says what keys do."""

    TITLE_TEXT: ClassVar[str] = ""
    WIDTH: ClassVar[int] = 92
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-8)", show=False),
        Binding("pagedown", "scroll(8)", show=False),
        Binding("escape,q,ctrl+c", "close", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._frame = Lines("sheet")
        self._top = 0
        self._most = 0

    def compose(self) -> ComposeResult:
        """Hold one widget of lines."""
        yield self._frame

    def title_line(self) -> str:
        """Return the title."""
        return self.TITLE_TEXT

    def body(self, width: int) -> list[Line]:
        """Return the lines that scroll."""
        raise NotImplementedError

    def foot(self, width: int) -> list[Line]:  # noqa: ARG002
        """Return the lines that stay."""
        return [[("Esc", TITLE), (" closes", DIM)]]

    def on_mount(self) -> None:
        """Draw for the first time."""
        self.draw()

    def on_resize(self, _: events.Resize) -> None:
        """Fit into the new size."""
        self.draw()

    def action_scroll(self, delta: int) -> None:
        """Move through a body that is longer than the screen."""
        self._top += delta
        self.draw()

    def action_close(self) -> None:
        """Leave without doing anything."""
        self.dismiss(None)

    def draw(self) -> None:
        """Compose frame, body and foot for the present size."""
        columns, rows = self.app.size
        width = self.WIDTH if columns >= self.WIDTH + 6 else columns  # no slivers beside it
        inner = width - 4
        body, foot = self.body(inner), self.foot(inner)
        room = max(min(len(body), rows - 3 - len(foot) - 1), 1)
        self._most = max(len(body) - room, 0)
        self._top = max(min(self._top, self._most), 0)
        height = room + len(foot) + 3
        self._frame.place(Box((columns - width) // 2, max((rows - height) // 2, 0), width, height))
        shown = body[self._top : self._top + room]
        lines = [_edge("╭", "╮", self.title_line(), width)]
        lines += [_framed(line, inner) for line in shown]
        lines.append(_edge("├", "┤", self.position(room, len(body)), width, quiet=True))
        lines += [_framed(line, inner) for line in foot]
        lines.append(_edge("╰", "╯", "", width))
        self._frame.show(lines)

    def position(self, room: int, total: int) -> str:
        """Return what the line between body and foot says."""
        return f"{self._top + 1}–{self._top + room} of {total} lines ↑ ↓" if self._most else ""


def paragraph(text: str, width: int, style: Style = TEXT) -> list[Line]:
    """Wrap a text into lines of one style."""
    return [[(line, style)] for line in wrap(text, width)]


def labelled(label: str, line: Line, *, width: int = 10) -> Line:
    """Set a line beside its dim label."""
    return [(label.ljust(width), DIM), *line]


def fact(label: str, text: str) -> Line:
    """Set a plain text beside its label, as in a list of facts."""
    return labelled(label, [(text, TEXT)], width=LABEL)


def wrapped(label: str, text: str) -> list[Line]:
    """Set a text of several lines beside its label."""
    rows = wrap(text, FACTS_WIDTH - LABEL)
    return [fact(label if number_of == 0 else "", row) for number_of, row in enumerate(rows)]


def _edge(left: str, right: str, text: str, width: int, *, quiet: bool = False) -> Line:
    if not text:
        return [(left + "─" * (width - 2) + right, ACCENT)]
    label = fit([(f" {text} ", DIM if quiet else TITLE)], min(len(text) + 2, width - 4))
    rest = width - 3 - sum(len(part) for part, _ in label)
    return [(left + "─", ACCENT), *label, ("─" * rest + right, ACCENT)]


def _framed(line: Line, inner: int) -> Line:
    return [("│ ", ACCENT), *fit(line, inner), (" │", ACCENT)]
