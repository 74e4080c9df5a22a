"""A panel: title, column heads and the rows around the selection."""

from __future__ import annotations

from rich.style import Style
from textual import events
from textual.message import Message

from fwtop.model.snapshot import Snapshot
from fwtop.ui.cells import Line, width_of
from fwtop.ui.columns import Scene, View, header_line, laid_out, panel_scale, row_line
from fwtop.ui.items import Item
from fwtop.ui.palette import ACCENT, BRAND, DIM, SELECTED, STRONG, TEXT, WARN
from fwtop.ui.panels import PANEL, PanelSpec
from fwtop.ui.table import RowList
from fwtop.ui.widgets import Lines


class Panel(Lines):
    """Shows one PanelSpec; keeps a RowList for each of its views."""

    class Pointed(Message):
        """A row was clicked."""

        def __init__(self, panel: Panel, index: int) -> None:
            super().__init__()
            self.panel = panel
            self.index = index

    def __init__(self, spec: PanelSpec) -> None:
        super().__init__(spec.name)
        self.spec = spec
        self.tabs: tuple[str, ...] = ()
        self.active = False  # the panel that keys refer to
        self.view_index = 0
        self.lists = [RowList(view.ordering) for view in spec.views]
        self._top = 0
        self._snapshot: Snapshot | None = None
        self._scene = Scene(0.0)

    @property
    def view(self) -> View:
        """The present view."""
        return self.spec.views[self.view_index]

    @property
    def rows(self) -> RowList:
        """The rows of the present view."""
        return self.lists[self.view_index]

    def current(self) -> Item | None:
        """Return the selected item, as it was last shown."""
        return self.rows.current()

    def take(self, snapshot: Snapshot, scene: Scene) -> None:
        """Take a snapshot over and repaint what it changed."""
        self._snapshot = snapshot
        self._scene = scene
        self.rows.update(self.spec.items(snapshot, self.view.name), scene.now)
        self.draw()

    def retake(self) -> None:
        """Apply a changed filter, order or view to the last snapshot."""
        if self._snapshot is not None:
            self.take(self._snapshot, self._scene)

    def next_view(self) -> None:
        """Change to the next view."""
        self.view_index = (self.view_index + 1) % len(self.spec.views)
        self._top = 0
        self.retake()

    def move(self, delta: int, now: float) -> None:
        """Move the selection by lines; a page is the panel's height."""
        self.rows.select(self.rows.selected + delta, now)
        self.draw()

    def follow(self) -> None:
        """Select the first row, and whatever comes first from now on."""
        self.rows.follow()
        self.retake()

    @property
    def page(self) -> int:
        """Rows that fit."""
        return max(self.box.height - 1 - int(self.view.header), 1)

    def draw(self) -> None:
        """Compose the lines anew."""
        if not self.display or self.box.width == 0:
            return
        rows, scene = self.rows, self._scene
        self._scroll()
        shown = rows.items[self._top : self._top + self.page]
        layout = laid_out(self.view.columns, self.box.width - 2)
        scene = Scene(scene.now, panel_scale(self.view, rows.items), scene.slow, scene.attack)
        lines = [self._title(self.box.width)]
        if self.view.header:
            lines.append([("  ", TEXT), *header_line(layout)])
        over: dict[int, Style] = {}
        for line, item in enumerate(shown, start=self._top):
            chosen = line == rows.selected
            if chosen and self.active:
                over[len(lines)] = SELECTED
            mark = "▸ " if chosen else "  "
            lines.append([(mark, ACCENT), *row_line(layout, item, scene)])
            if chosen and rows.gone:
                over[len(lines) - 1] = SELECTED + DIM if self.active else DIM
        if not rows.items:
            lines.append([("  ", TEXT), (self._empty_text(), DIM)])
        self.show(lines, over)

    def _scroll(self) -> None:
        rows = self.rows
        if rows.selected < self._top:
            self._top = rows.selected
        elif rows.selected >= self._top + self.page:
            self._top = rows.selected - self.page + 1
        self._top = max(min(self._top, len(rows.items) - self.page), 0)

    def _empty_text(self) -> str:
        if self.rows.hidden:
            return f"nothing matches /{self.rows.filter}"
        return self.view.empty

    def _title(self, width: int) -> Line:
        line = self._tab_line() if self.tabs else self._label(self.spec, active=True)
        right = self._facts(width - width_of(line) - 4)
        line.append((" ", TEXT))
        rule = width - width_of(line) - width_of(right) - (1 if right else 0)
        line.append(("─" * max(rule, 0), DIM))
        return [*line, (" ", TEXT), *right] if right else line

    def _tab_line(self) -> Line:
        line: Line = []
        for name in self.tabs:
            if line:
                line.append((" ", TEXT))
            line += self._label(PANEL[name], active=name == self.spec.name)
        return line

    def _label(self, spec: PanelSpec, *, active: bool) -> Line:
        count = 0
        roomy = len(self.tabs) <= 5 or self.box.width >= 72  # seven tabs need 57 cells and their counts 10
        if spec.counted and roomy and self._snapshot is not None:
            count = len(spec.items(self._snapshot, ""))
        text = f"{spec.title} {count}" if count else spec.title
        if not active:
            return [(text, DIM)]
        return [(f" {text} ", BRAND)] if self.active else [(text, STRONG)]

    def _facts(self, room: int) -> Line:
        """Say what is filtered, sorted, scrolled and which view it is, as far as there is room."""
        rows = self.rows
        facts: list[Line] = []
        if len(rows.items) > self.page:
            last = min(self._top + self.page, len(rows.items))
            facts.append([(f"{self._top + 1}–{last} of {len(rows.items)}", DIM)])
        if rows.sort_name:
            facts.append([(f"by {rows.sort_name}", ACCENT)])
        if rows.filter:
            facts.append([(f"/{rows.filter}", WARN), (f" {rows.hidden} hidden", DIM)])
        if len(self.spec.views) > 1:
            facts.append(self._views(room))
        line: Line = []
        for fact in facts:
            if width_of(line) + width_of(fact) + 2 <= room:
                line += [("  ", TEXT), *fact] if line else fact
        return line

    def _views(self, room: int) -> Line:
        if room < 60:
            return [("v ", ACCENT), (self.view.name, STRONG)]
        line: Line = [("v ", ACCENT)]
        for view in self.spec.views:
            line.append((f"{view.name} ", STRONG if view is self.view else DIM))
        return [*line[:-1], (line[-1][0].rstrip(), line[-1][1])]

    def on_click(self, event: events.Click) -> None:
        """Select the row under the pointer."""
        line = event.y - 1 - int(self.view.header)
        if line >= 0:
            self.post_message(self.Pointed(self, self._top + line))
