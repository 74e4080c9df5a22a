"""Tabs, panels, selection and filter: which rows keys refer to, and where everything stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace
from textual.widget import Widget
from textual.widgets import Input

from fwtop.model.rule import RuleStatus
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.log import Toasts
from fwtop.ui.actions.packets import PacketPanel
from fwtop.ui.bars import TabBar, TimeBar
from fwtop.ui.layout import MOST_GRAPH, Frame, Guarded, Lines, frame
from fwtop.ui.lists.panel import Panel
from fwtop.ui.lists.panels import PANELS, with_chosen
from fwtop.ui.settings import Settings
from fwtop.ui.tabs import TAB, TABS, Arrangement, Content


class _FilterLine(Guarded, Input):
    """The filter's input line, the only widget that ever has Textual's focus."""


class TabActions:
    """The tab that is shown and the panel that keys refer to; `measure` says how much there is to show."""

    def __init__(self, desk: Desk, settings: Settings) -> None:
        self.tab_bar = TabBar("tabs")
        self.time_bar = TimeBar()
        self.toasts = Toasts()
        self.packet_panel = PacketPanel()
        self.panels = {spec.name: Panel(with_chosen(spec, settings.columns)) for spec in PANELS}
        self.panels["packets"] = self.packet_panel
        self.texts = {name: Lines(name) for name in ("effect", "funnel", "stage", "packet", "setup")}
        self.filter_line = _FilterLine(id="filter", placeholder="show only rows with …", compact=True)
        self.shown = TAB[settings.first_tab]
        self.touched = False  # the operator has chosen a tab, a panel or a row
        self.measure: Callable[[], Content] = Content
        self._desk = desk
        self._focus = {tab.name: tab.panels[0] for tab in TABS}  # the panel of each tab that keys refer to
        self._wanted = ""  # the panel that had the keys without the operator's choice
        self._content = Content()

    def widgets(self) -> Iterator[Widget]:
        """Yield the tab bar, all panels and texts, and the filter's input line."""
        yield self.tab_bar
        yield self.time_bar
        yield from self.panels.values()
        yield from self.texts.values()
        yield self.filter_line
        yield self.toasts

    def place(self, *, settle: bool = True) -> None:
        """Give every widget its box; once more if what is drawn there needs another height."""
        desk, (width, height) = self._desk, self._desk.size
        self._content = self.measure()
        around, inner = self._arranged()
        boxes = inner.boxes if around is None else around.boxes | inner.boxes
        desk.bars.place(boxes)
        for name, text in (*self.texts.items(), ("tabs", self.tab_bar), ("timebar", self.time_bar)):
            text.place(boxes.get(name))
        for name, panel in self.panels.items():
            panel.place(boxes.get(name))
            panel.slot = inner.slots.get(name, ())
        if around is None:
            self.filter_line.display = False
            desk.bars.show_too_small(width, height)
            return
        if not self.panel.display:
            there = [name for name in self.shown.panels if name in boxes]
            listing = (name for name in there if self.panels[name].rows.items)
            self._focus[self.shown.name] = next(listing, there[0])
            self._content = replace(self._content, focused=self.focused)
        for name, panel in self.panels.items():
            panel.active = name == self.focused
        status = boxes["status"]
        self.filter_line.styles.offset = (status.x, status.y)
        self.filter_line.styles.width = status.width
        desk.redraw()
        if settle and self.measure() != self._content:  # rows break differently at this width
            self.place(settle=False)

    def _arranged(self) -> tuple[Frame | None, Arrangement]:
        """Divide the terminal; lines that a tab would leave empty are the graph's, if that cuts nothing."""

        def arranged(more: int) -> tuple[Frame | None, Arrangement]:
            size, recorded = self._desk.size, self._desk.feed.player is not None
            around = frame(*size, self.shown.name, slow=self._desk.slow, recorded=recorded, more=more)
            inner = self.shown.arrange(around.room, self._content) if around is not None else Arrangement({})
            return around, inner

        around, inner = arranged(0)
        if around is None or "graph" not in around.boxes:
            return around, inner
        free = around.room.y + around.room.height - max(box.y + box.height for box in inner.boxes.values())
        wanted = [box.height for box in inner.boxes.values()]
        for more in range(min(free, MOST_GRAPH - around.boxes["graph"].height), 0, -1):
            higher = arranged(more)
            if [box.height for box in higher[1].boxes.values()] == wanted:
                return higher
        return around, inner

    def place_again(self) -> None:
        """Lay out anew if there is more or less to show than before."""
        if self.measure() != self._content:
            self.place()

    @property
    def focused(self) -> str:
        """The name of the panel that keys refer to."""
        return self._focus[self.shown.name]

    @property
    def panel(self) -> Panel:
        """The panel that keys refer to."""
        return self.panels[self.focused]

    @property
    def filtered(self) -> Panel:
        """The panel that a filter is for: proposals are those against the attacks that are shown."""
        return self.panels["attacks"] if self.focused == "proposals" else self.panel

    def selected_rule(self) -> RuleStatus | None:
        """Return the selected row if it is a rule."""
        item = self.panel.current()
        return item if isinstance(item, RuleStatus) else None

    def show(self, name: str) -> None:
        """Go to a tab."""
        self.touched = True
        self.close_filter()
        self.shown = TAB[name]
        self.place()

    def focus(self, name: str) -> None:
        """Direct the keys to a panel, on the tab that holds it."""
        self.touched = True
        reachable = self.panels[name].display or any(name in panel.slot for panel in self.panels.values())
        if name not in self.shown.panels or not reachable:
            self.shown = next(tab for tab in (*TABS[1:], TABS[0]) if name in tab.panels)
        self._focus[self.shown.name] = name
        self.place()

    def suggest(self, name: str) -> None:
        """Direct the keys of the overview to a panel, until the operator chooses."""
        if self.touched or self.shown.name != "overview":
            return
        if name != self._wanted or self.panels[name].display:  # there may be no room for it
            self._wanted = self._focus["overview"] = name

    # -- what keys do

    def go(self, name: str) -> None:
        """Go to a tab, or say that this is it."""
        if self.shown is TAB[name]:
            self._desk.say(f"this is the {self.shown.title} tab")
        self.show(name)

    def turn(self, delta: int) -> None:
        """Go to the next tab."""
        names = [tab.name for tab in TABS]
        self.show(names[(names.index(self.shown.name) + delta) % len(names)])

    def move(self, delta: int) -> None:
        """Select another row; say so where there is none."""
        self.touched = True
        rows, before = self.panel.rows, self.panel.rows.selected
        self.panel.move(delta, self._desk.now())
        if rows.selected == before:
            edge = f"this is the {'first' if delta < 0 else 'last'} row"
            self._desk.say(edge if rows.items else "nothing is listed here")
        if self.focused in ("path", "proposals"):
            self._desk.proposals.moved = self.focused == "proposals"
            self._desk.redraw()  # the text about the stage follows at once

    def page(self, delta: int) -> None:
        """Select a row a page away."""
        self.move(delta * self.panel.page)

    def top(self) -> None:
        """Select the first row, and from now on whichever is first."""
        rows, before = self.panel.rows, self.panel.rows.selected
        self.panel.follow()
        if rows.selected == before:
            edge = f"this is the first row{', whichever that will be' if rows.followed else ''}"
            self._desk.say(edge if rows.items else "nothing is listed here")

    def bottom(self) -> None:
        """Select the last row."""
        self.move(len(self.panel.rows.items) or 1)

    def reachable(self) -> list[str]:
        """Return the panels of this tab that are visible or share a place with one that is."""
        shown = {name for name in self.shown.panels if self.panels[name].display}
        shown |= {other for name in shown for other in self.panels[name].slot}
        return [name for name in self.shown.panels if name in shown]

    def next_panel(self, delta: int) -> None:
        """Go to the next panel of this tab that is visible or shares a place with one that is."""
        names = self.reachable()
        if self.focused not in names:  # the terminal is too small for any
            return
        if len(names) == 1:
            self._desk.say("this tab has no other panel")
        self.focus(names[(names.index(self.focused) + delta) % len(names)])
        self._desk.say_if_empty()

    def viewed(self) -> str:
        """Return the panel of this tab that has several views, the present one first; "" if there is none."""
        names = (self.focused, *self.reachable())
        return next((name for name in names if len(self.panels[name].spec.views) > 1), "")

    def view(self, name: str = "") -> None:
        """Change how the traffic is listed, or show a view of the present panel."""
        if name:
            self.panel.show_view(name)
            return
        self.focus(self.viewed() or "sources")
        self.panel.next_view()
        self._desk.say_if_empty()

    def sort(self, name: str = "") -> None:
        """Change the order, or sort by a column."""
        if name:
            self.panel.rows.sort_by(name)
            self.panel.reload()
            return
        name = self.panel.rows.next_sort() or "packets"
        self.panel.reload()
        self._desk.say(f"{self.panel.spec.title} sorted by {name}")

    def filter(self, text: str = "") -> None:
        """Show only rows with a text, or ask for it."""
        if text:
            self.filtered.set_filter(text)
            return
        self.filter_line.value = self.filtered.filter_text
        self.filter_line.display = True
        # At once: Widget.focus() would let keys that follow pass by.
        self._desk.screen.set_focus(self.filter_line)

    def close_filter(self) -> None:
        """Keep the filter, and go on with keys."""
        self.filter_line.display = False
        self._desk.screen.set_focus(None)
