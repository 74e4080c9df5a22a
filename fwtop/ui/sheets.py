"""The other dialogs: details, help, and a choice between a few answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from fwtop.ui.cells import Line
from fwtop.ui.keys import KEYS
from fwtop.ui.palette import BUTTON, DIM, STRONG, TEXT, TITLE
from fwtop.ui.sheet import Sheet, paragraph


class FactsSheet(Sheet[None], inherit_bindings=False):
    """All facts of a row, as they were when it was opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *Sheet.BINDINGS,
        Binding("enter,r,a,question_mark,f1", "close", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self._heading = title
        self._lines = list(lines)

    def title_line(self) -> str:
        """Return the row's name."""
        return self._heading

    def body(self, width: int) -> list[Line]:  # noqa: ARG002
        """Return the facts."""
        return self._lines


def help_lines() -> list[Line]:
    """Write the table of keys in its groups."""
    lines: list[Line] = []
    for group in dict.fromkeys(key.group for key in KEYS):
        lines += [[]] if lines else []
        lines.append([(group, STRONG)])
        for key in KEYS:
            if key.group == group and key.label:
                lines.append([(f"  {key.label:<11}", TITLE), (key.help, TEXT)])
    return lines


class AskSheet(Sheet[str | None], inherit_bindings=False):
    """A question with a few answers; the first is the safe one and marked at the start."""

    WIDTH = 72
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,right,down", "mark(1)", show=False),
        Binding("shift+tab,left,up", "mark(-1)", show=False),
        Binding("enter", "choose", show=False),
        Binding("escape,ctrl+c", "close", show=False),
    ]

    def __init__(self, title: str, question: str, answers: Sequence[str]) -> None:
        super().__init__()
        self._heading = title
        self._question = question
        self._answers = list(answers)
        self._marked = 0

    def title_line(self) -> str:
        """Return the title."""
        return self._heading

    def body(self, width: int) -> list[Line]:
        """Return the question."""
        return paragraph(self._question, width)

    def foot(self, width: int) -> list[Line]:  # noqa: ARG002
        """Return the answers as buttons."""
        line: Line = []
        for number, answer in enumerate(self._answers):
            style = BUTTON if number == self._marked else TEXT
            mark = "▸" if number == self._marked else " "
            line += [(f"{mark} {answer} ", style), (" ", TEXT)]
        return [[], line, [("Enter", TITLE), (" chooses  ", DIM), ("Esc", TITLE), (" cancels", DIM)]]

    def action_mark(self, delta: int) -> None:
        """Mark another answer."""
        self._marked = (self._marked + delta) % len(self._answers)
        self.draw()

    def action_choose(self) -> None:
        """Give the marked answer."""
        self.dismiss(self._answers[self._marked])
