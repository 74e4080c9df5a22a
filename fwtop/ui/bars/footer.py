"""The footer: the most important keys of a tab, which can also be clicked."""

from __future__ import annotations

from textual import events
from textual.message import Message

from fwtop.ui.drawing.layout import Lines
from fwtop.ui.drawing.style import NOTICE, TEXT, TITLE, Line, width_of
from fwtop.ui.keys import KEY_MAP, Action


class Footer(Lines):
    """Shows keys with their words; a click presses one."""

    class Clicked(Message):
        """A key was clicked; "": those of the proposals, of which a click doesn't tell one."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self) -> None:
        super().__init__("footer")
        self._ends: list[tuple[int, Action]] = []  # the cell after each key

    def write(self, *, tab: str, waiting: bool, readonly: bool, origin: str) -> None:
        """Draw the keys of a tab; `waiting`: a rule waits for confirmation, `origin`: what is watched."""
        line: Line = []
        self._ends = []
        for row in KEY_MAP.footer(self.box.width, tab=tab, pending=waiting, readonly=readonly, origin=origin):
            style = NOTICE if row.name == "keep" else TITLE
            line += [(" ", TEXT), (row.label, style), (f" {row.footer}", TEXT), (" ", TEXT)]
            self._ends.append((width_of(line), row))
        self.show([line])

    def clear(self) -> None:
        """Show nothing: a dialog has keys of its own."""
        self._ends = []
        self.show([[]])

    def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer; of several, the first."""
        row = next((row for end, row in self._ends if event.x < end), None)
        if row is not None:
            self.post_message(self.Clicked("" if row.name == "proposal" else row.keys[0]))
