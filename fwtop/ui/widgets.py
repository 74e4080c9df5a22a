"""A widget that holds finished lines and repaints only what changed of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from fwtop.ui.cells import Line, last_difference, strip_of
from fwtop.ui.layout import Box


class Lines(Widget):
    """Shows lines as they are; whoever owns it composes them."""

    DEFAULT_CSS = "Lines { position: absolute; width: 1; height: 1; }"

    def __init__(self, name: str) -> None:
        super().__init__(name=name, id=name)
        self._strips: list[Strip] = []
        self.box = Box(0, 0, 0, 0)

    def place(self, box: Box | None) -> None:
        """Move to a box, or hide."""
        self.display = box is not None
        if box is not None and box != self.box:
            self.box = box
            self.styles.offset = (box.x, box.y)
            self.styles.width = box.width
            self.styles.height = box.height
            self._strips = []

    def show(self, lines: Sequence[Line], over: dict[int, Style] | None = None) -> None:
        """Show these lines, each cut to the width; `over` styles whole lines."""
        whole = over or {}
        strips = [
            strip_of(line, self.box.width, over=whole.get(number)) for number, line in enumerate(lines)
        ][: self.box.height]
        blank = Strip.blank(self.box.width)
        strips += [blank] * (self.box.height - len(strips))
        old, self._strips = self._strips, strips
        if len(old) != len(strips):
            self.refresh()
            return
        changed = [
            Region(0, y, end, 1)
            for y, (before, after) in enumerate(zip(old, strips, strict=True))
            if (end := last_difference(before, after))
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Return a finished line."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)
