"""The line of tabs: which one is shown, what the others hold, and what the tabs are scoped to."""

from __future__ import annotations

from collections.abc import Mapping

from textual import events
from textual.message import Message

from fwtop.ui.drawing.layout import Lines
from fwtop.ui.drawing.style import BRAND, DIM, TEXT, TITLE, Line, spread, width_of
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.tabs import TABS


class TabBar(Lines):
    """Shows the tabs; a click chooses one."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self) -> None:
        super().__init__("tabs")
        self._ends: list[tuple[int, str]] = []  # the cell after each tab

    def write(self, shown: str, counts: Mapping[str, int], scope: str) -> None:
        """Draw the bar; `counts` are written behind the titles, `scope` at the right."""
        line: Line = []
        self._ends = []
        for tab in TABS:
            count = counts.get(tab.name, 0)
            title = f" {tab.title} {count} " if count else f" {tab.title} "
            line.append((title, BRAND if tab.name == shown else TEXT))
            self._ends.append((width_of(line), tab.name))
        keys = f"{KEY_MAP.label('previous_tab')} {KEY_MAP.label('next_tab')}"
        right: Line = [(keys, TITLE), (" tab ", DIM)]
        if scope:
            right = [(f"{scope}  ", TITLE), (KEY_MAP.label("unscope"), TITLE), (" shows all ", DIM)]
        self.show([spread(line, right, self.box.width)])

    def on_click(self, event: events.Click) -> None:
        """Choose the tab under the pointer."""
        name = next((name for end, name in self._ends if event.x < end), None)
        if name is not None:
            self.post_message(self.Chosen(name))
