"""Tabs, panels, selection and filter of the main screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace
from textual import events
from textual.widget import Widget
from textual.widgets import Input

from fwtop.ui.actions.rule_actions import RuleKeysScreen
from fwtop.ui.bars.status_bars import StatusBars, TabBar
from fwtop.ui.bars.time_bar import TimeBar
from fwtop.ui.bars.toasts import Toasts
from fwtop.ui.dialogs.dialog import DetailsDialog
from fwtop.ui.drawing.guarded import Guarded
from fwtop.ui.drawing.layout import Lines, frame
from fwtop.ui.drawing.style import Line
from fwtop.ui.keys import KEY_MAP, Action
from fwtop.ui.lists.details import details_of
from fwtop.ui.lists.packet_panel import PacketPanel
from fwtop.ui.lists.panel import Panel
from fwtop.ui.lists.panels import PANELS, with_chosen
from fwtop.ui.lists.rows import Item
from fwtop.ui.tabs import TAB, TABS, Content


class _FilterLine(Guarded, Input):
    """The filter's input line."""


class TabScreen(RuleKeysScreen, inherit_bindings=False):
    """Tabs, panels, selection and filter; what an action means is up to the subclass."""

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

    def __init__(
        self, bars: StatusBars, *, slow: bool, recorded: bool, columns: Mapping[str, tuple[str, ...]]
    ) -> None:
        super().__init__()
        self.bars = bars
        self.slow = slow
        self.recorded = recorded
        self.tab_bar = TabBar("tabs")
        self.time_bar = TimeBar()
        self.toasts = Toasts()
        self.packet_panel = PacketPanel()
        self.panels: dict[str, Panel] = {spec.name: Panel(with_chosen(spec, columns)) for spec in PANELS}
        self.panels["packets"] = self.packet_panel
        self.texts = {name: Lines(name) for name in ("effect", "funnel", "stage", "packet")}
        self.tab = TABS[0]
        self._focus = {tab.name: tab.panels[0] for tab in TABS}  # the panel of each tab that keys refer to
        self._touched = False  # the operator has chosen a tab, a panel or a row
        self._content = Content()
        self._filter = _FilterLine(id="filter", placeholder="show only rows with …", compact=True)

    def compose_tabs(self) -> Iterator[Widget]:
        """Yield the tab bar, all panels and texts, and the filter's input line."""
        yield self.tab_bar
        yield self.time_bar
        yield from self.panels.values()
        yield from self.texts.values()
        yield self._filter
        yield self.toasts

    def now(self) -> float:
        """Return the time that ages and countdowns refer to."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Show a message for some seconds."""
        raise NotImplementedError

    def back(self) -> bool:
        """Go back up from where the operator drilled down; False at the top."""
        return False

    def content(self) -> Content:
        """Return how much there is to show, for the layout."""
        raise NotImplementedError

    def place(self, *, settle: bool = True) -> None:
        """Give every widget its box; once more if what is drawn there needs another height."""
        width, height = self.app.size
        self._content = self.content()
        around = frame(width, height, self.tab.name, slow=self.slow, recorded=self.recorded)
        boxes = dict(around.boxes) if around is not None else {}
        slots: dict[str, tuple[str, ...]] = {}
        if around is not None:
            arrangement = self.tab.arrange(around.room, self._content)
            boxes |= arrangement.boxes
            slots = arrangement.slots
        self.bars.place(boxes)
        for name, text in (*self.texts.items(), ("tabs", self.tab_bar), ("timebar", self.time_bar)):
            text.place(boxes.get(name))
        for name, panel in self.panels.items():
            panel.place(boxes.get(name))
            panel.slot = slots.get(name, ())
        if around is None:
            self._filter.display = False
            self.bars.show_too_small(width, height)
            return
        if not self.panel.display:
            self._focus[self.tab.name] = next(name for name in self.tab.panels if name in boxes)
            self._content = replace(self._content, focused=self._focused)
        for name, panel in self.panels.items():
            panel.active = name == self._focused
        status = boxes["status"]
        self._filter.styles.offset = (status.x, status.y)
        self._filter.styles.width = status.width
        self.redraw()
        if settle and self.content() != self._content:  # rows break differently at this width
            self.place(settle=False)

    def place_again(self) -> None:
        """Lay out anew if there is more or less to show than before."""
        if self.content() != self._content:
            self.place()

    @property
    def _focused(self) -> str:
        return self._focus[self.tab.name]

    @property
    def panel(self) -> Panel:
        """The panel that keys refer to."""
        return self.panels[self._focused]

    def show_tab(self, name: str) -> None:
        """Go to a tab."""
        self._touched = True
        self._close_filter()
        self.tab = TAB[name]
        self.place()

    def focus_panel(self, name: str) -> None:
        """Direct the keys to a panel, on the tab that holds it."""
        self._touched = True
        self._bring_forward(name)

    def _bring_forward(self, name: str) -> None:
        reachable = self.panels[name].display or any(name in panel.slot for panel in self.panels.values())
        if name not in self.tab.panels or not reachable:
            self.tab = next(tab for tab in (*TABS[1:], TABS[0]) if name in tab.panels)
        self._focus[self.tab.name] = name
        self.place()

    def on_panel_row_clicked(self, message: Panel.RowClicked) -> None:
        """Select what was clicked."""
        self.focus_panel(message.panel.spec.name)
        if message.index < len(message.panel.rows.items):
            message.panel.move(message.index - message.panel.rows.selected, self.now())

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        """Go to the tab that was clicked."""
        self.show_tab(message.name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Leave a key that begins a text to the text that is being typed."""
        typing = action == "press" and self._filter.has_focus
        return not (typing and KEY_MAP.begins_text(str(parameters[0])))

    def action_press(self, key: str) -> None:
        """Do what a key means on the present tab."""
        action = KEY_MAP.action(key, self.tab.name)
        if action is not None:
            self.perform(action, key if action.name == "proposal" else "")

    def perform(self, action: Action, argument: str = "") -> None:
        """Call the method that an action names."""
        method, *given = action.does
        getattr(self, f"action_{method}")(*given, *([argument] if argument else []))

    def action_go(self, name: str) -> None:
        """Go to a tab."""
        if self.tab is TAB[name]:
            self.say(f"this is the {self.tab.title} tab")
        self.show_tab(name)

    def action_tab(self, delta: int) -> None:
        """Go to the next tab."""
        names = [tab.name for tab in TABS]
        self.show_tab(names[(names.index(self.tab.name) + delta) % len(names)])

    def action_move(self, delta: int) -> None:
        """Select another row; say so where there is none."""
        self._touched = True
        rows, before = self.panel.rows, self.panel.rows.selected
        self.panel.move(delta, self.now())
        if rows.selected == before:
            edge = f"this is the {'first' if delta < 0 else 'last'} row"
            self.say(edge if rows.items else "nothing is listed here")

    def action_page(self, delta: int) -> None:
        """Select a row a page away."""
        self.action_move(delta * self.panel.page)

    def action_top(self) -> None:
        """Select the first row, and from now on whichever is first."""
        rows, before = self.panel.rows, self.panel.rows.selected
        self.panel.follow()
        if rows.selected == before:
            edge = f"this is the first row{', whichever that will be' if rows.followed else ''}"
            self.say(edge if rows.items else "nothing is listed here")

    def action_bottom(self) -> None:
        """Select the last row."""
        self.action_move(len(self.panel.rows.items) or 1)

    def action_panel(self, delta: int) -> None:
        """Go to the next panel of this tab that is visible or shares a place with one that is."""
        reachable = {name for name in self.tab.panels if self.panels[name].display}
        reachable |= {other for name in reachable for other in self.panels[name].slot}
        names = [name for name in self.tab.panels if name in reachable]
        if self._focused not in names:  # the terminal is too small for any
            return
        if len(names) == 1:
            self.say("this tab has no other panel")
        self.focus_panel(names[(names.index(self._focused) + delta) % len(names)])
        self._say_if_empty()

    def _say_if_empty(self) -> None:
        """Say why a key seems to do nothing before the first snapshot."""
        if self.current_snapshot() is None:
            self.say("nothing has been observed yet")

    def action_view(self, name: str = "") -> None:
        """Change how the traffic is listed, or what keys refer to is in a view of that name."""
        if name:
            self.panel.show_view(name)
            return
        if len(self.panel.spec.views) == 1:
            self.focus_panel("sources" if "sources" in self.tab.panels else TAB["traffic"].panels[0])
        self.panel.next_view()
        self._say_if_empty()

    def action_sort(self, name: str = "") -> None:
        """Change the order, or sort by a column."""
        if name:
            self.panel.rows.sort_by(name)
            self.panel.reload()
            return
        name = self.panel.rows.next_sort()
        self.panel.reload()
        self.say(f"{self.panel.spec.title} sorted by {name or 'packets'}")

    def action_details(self) -> None:
        """Show everything about the selected row, kept up to date."""
        item = self.panel.current()
        if item is None:
            self.say("nothing is selected")
            return
        self.panel.rows.pin(self.now())
        self._touched = True
        self.app.push_screen(self.details_dialog(item))

    def details_dialog(self, item: Item) -> DetailsDialog:
        """Return the dialog of a row's details."""
        return DetailsDialog(self._details_title(item), self._live_details(item))

    def _details_title(self, item: Item) -> str:
        return details_of(item, self.now(), self.current_snapshot())[0]

    def _live_details(self, item: Item) -> Callable[[], list[Line]]:
        """Return a function that writes a row's details as they are now."""
        rows = self.panel.rows
        return lambda: details_of(rows.latest(item), self.now(), self.current_snapshot())[1]

    def action_filter(self, text: str = "") -> None:
        """Show only rows with a text, or ask for it."""
        if text:
            self.panel.set_filter(text)
            return
        self._filter.value = self.panel.filter_text
        self._filter.display = True
        self.set_focus(self._filter)  # at once; Widget.focus() would let keys that follow pass by

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        if self._filter.display:
            self.panel.set_filter(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter."""
        self._close_filter()

    def on_key(self, event: events.Key) -> None:
        """Drop the filter on Escape, or go back up."""
        super().on_key(event)
        if event.key == "escape":
            if not self.panel.rows.filter and not self._filter.display and self.back():
                return
            self._close_filter()
            self.panel.set_filter("")

    def _close_filter(self) -> None:
        self._filter.display = False
        self.set_focus(None)
