"""The panels of the main screen and the keys that look: where they are, what is selected, the filter."""

from __future__ import annotations

from collections.abc import Iterator

from textual import events
from textual.widget import Widget
from textual.widgets import Input

from fwtop.model.text import safe_text
from fwtop.ui.desk_screen import DeskScreen
from fwtop.ui.face import Face
from fwtop.ui.facts import facts_of
from fwtop.ui.layout import LOWER, UPPER, arrange
from fwtop.ui.panel import Panel
from fwtop.ui.panels import PANELS
from fwtop.ui.sheets import FactsSheet


class PanelScreen(DeskScreen, inherit_bindings=False):
    """Places the panels and moves among them; what a row means to the machine is a subclass's."""

    AUTO_FOCUS = ""  # only the filter's input line ever has Textual's focus
    CSS = """
    #filter {
        position: absolute;
        display: none;
        height: 1;
        border: none;
        padding: 0 1;
        background: ansi_default;
    }
    """

    def __init__(self, face: Face) -> None:
        super().__init__()
        self.face = face
        self.panels = {spec.name: Panel(spec) for spec in PANELS}
        self._focused = "sources"
        self._shown = {"upper": "sources", "lower": "proposals", "only": "sources"}
        self._filter = Input(id="filter", placeholder="show only rows with …", compact=True)

    def compose_panels(self) -> Iterator[Widget]:
        """Yield the panels and the filter's line."""
        yield from self.panels.values()
        yield self._filter

    def now(self) -> float:
        """Return the time that ages and countdowns refer to."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw everything anew."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Show a line of news for a while."""
        raise NotImplementedError

    def place(self) -> None:
        """Give every widget its box."""
        width, height = self.app.size
        arrangement = arrange(width, height, self._shown)
        boxes = arrangement.boxes if arrangement is not None else {}
        self.face.place(boxes)
        for name, panel in self.panels.items():
            panel.place(boxes.get(name))
            panel.active = name == self._focused
            panel.tabs = arrangement.tabs.get(name, ()) if arrangement is not None else ()
        if arrangement is None:
            self._filter.display = False
            self.face.apologise(width, height)
            return
        status = boxes["status"]
        self._filter.styles.offset = (status.x, status.y)
        self._filter.styles.width = status.width
        self.redraw()

    @property
    def panel(self) -> Panel:
        """The panel that keys refer to."""
        return self.panels[self._focused]

    def focus_panel(self, name: str) -> None:
        """Bring a panel to the front and give it the keys."""
        self._focused = name
        self._shown["only"] = name
        self._shown["upper" if name in UPPER else "lower"] = name
        self.place()

    def on_panel_pointed(self, message: Panel.Pointed) -> None:
        """Select what was clicked."""
        self.focus_panel(message.panel.spec.name)
        if message.index < len(message.panel.rows.items):
            message.panel.move(message.index - message.panel.rows.selected, self.now())

    def reveal(self, name: str) -> None:
        """Bring a lower panel into sight, unless the keys are on one of them."""
        if self._focused not in LOWER:
            self._shown["lower"] = name
            self.place()

    def action_move(self, delta: int) -> None:
        """Select another row."""
        self.panel.move(delta, self.now())

    def action_page(self, delta: int) -> None:
        """Select a row a page away."""
        self.panel.move(delta * self.panel.page, self.now())

    def action_top(self) -> None:
        """Select the first row and follow whatever comes first."""
        self.panel.follow()

    def action_bottom(self) -> None:
        """Select the last row."""
        self.panel.move(len(self.panel.rows.items), self.now())

    def action_panel(self, delta: int) -> None:
        """Go to the next panel."""
        names = UPPER + LOWER
        self.focus_panel(names[(names.index(self._focused) + delta) % len(names)])

    def action_view(self) -> None:
        """Change how sources are listed."""
        if len(self.panel.spec.views) == 1:
            self.focus_panel("sources")
        self.panel.next_view()

    def action_sort(self) -> None:
        """Change the order."""
        name = self.panel.rows.next_sort()
        self.panel.retake()
        self.say(f"{self.panel.spec.title} sorted by {name or 'packets'}")

    def action_details(self) -> None:
        """Show everything about the selected row."""
        item = self.panel.current()
        if item is None:
            self.say("nothing is selected")
            return
        self.app.push_screen(FactsSheet(*facts_of(item, self.now())))

    def action_filter(self) -> None:
        """Ask for a text that rows must contain."""
        self._filter.value = self.panel.rows.filter
        self._filter.display = True
        self._filter.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        if self._filter.display:
            self.panel.rows.filter = safe_text(event.value, limit=60)
            self.panel.retake()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter."""
        self._close_filter()

    def on_key(self, event: events.Key) -> None:
        """Escape drops the filter."""
        if event.key == "escape":
            self.panel.rows.filter = ""
            self._close_filter()
            self.panel.retake()

    def _close_filter(self) -> None:
        self._filter.display = False
        self.set_focus(None)
