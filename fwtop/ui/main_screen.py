"""The main screen: puts its parts together, and passes keys, clicks and snapshots on to them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from operator import attrgetter

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingsMap
from textual.screen import Screen
from textual.widgets import Input

from fwtop.render.numbers import utc
from fwtop.ui.actions.commands import Call, Command, CommandDialog, History, commands, offer
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.dialog import Dialog, HelpDialog
from fwtop.ui.actions.log import FAULT, SETTINGS
from fwtop.ui.actions.packets import PacketActions
from fwtop.ui.actions.row_actions import RowActions
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.actions.session_actions import SessionActions
from fwtop.ui.actions.tab_actions import TabActions
from fwtop.ui.bars import Footer, TabBar, TimeBar
from fwtop.ui.feed import Feed
from fwtop.ui.format import number
from fwtop.ui.graph import UNITS, Graph
from fwtop.ui.keys import KEY_MAP, Action
from fwtop.ui.layout import Clicked, Guarded, Lines
from fwtop.ui.lists.panel import Panel
from fwtop.ui.settings import Settings
from fwtop.ui.snapshot_view import SnapshotView
from fwtop.ui.style import BAD, PALETTE, WARN
from fwtop.ui.terminal import ResilientDriver

_GRAPH_WORDS = {
    "packets": "packets",
    "bits": "bits; the parts are estimated from packets",
    "log": "packets on a log scale: each edge between two parts stands at its value",
}
_TOLD_SECONDS = 60.0  # the same drawing that fails again isn't told again so soon


class MainScreen(Guarded, Screen[None], inherit_bindings=False):
    """A key is looked up in the table of actions, `ui/keys.py`, which names a part and one of its methods."""

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

    def __init__(self, feed: Feed, *, clock: Callable[[], float], slow: bool, settings: Settings) -> None:
        super().__init__()
        self._bindings = BindingsMap(KEY_MAP.bindings())
        self.desk = Desk(self, feed, clock, begin=self.begin, slow=slow)
        self.bars = self.desk.bars
        self.bars.unit = settings.graph_unit
        self.bars.graph.seconds = settings.rates.graph_seconds
        self.tabs = TabActions(self.desk, settings)
        self.rules = RuleActions(self.desk, self.tabs)
        self.rows = RowActions(self.desk, self.tabs, self.rules)
        self.session = SessionActions(self.desk, self.rules)
        self.packets = PacketActions(
            self.desk, self.tabs.packet_panel, self.tabs.texts["packet"], self.session.pause
        )
        self.view = SnapshotView(
            self.desk,
            self,
            tabs=self.tabs,
            rules=self.rules,
            rows=self.rows,
            packets=self.packets,
            session=self.session,
        )
        self.take = self.view.take
        self.be_slow: Callable[[bool], None] = lambda _: None  # the application's frames
        self._history = History()
        self._told: dict[str, float] = {}  # faults of drawing, and when they were told

    def compose(self) -> ComposeResult:
        """Yield all widgets; the tabs place them."""
        yield from self.bars
        yield from self.tabs.widgets()

    def on_mount(self) -> None:
        """Lay out and start the countdowns."""
        if self.desk.feed.is_new:
            words = "In an attack: {proposal}…9 preview a defence, {open} tries it for %d s, {keep} keeps it"
            self.bars.welcome = KEY_MAP.words(words) % self.desk.controls.confirm_seconds
        self.tabs.place()
        self.set_interval(1.0, self.view.redraw_clocks)

    def on_resize(self, _: events.Resize) -> None:
        """Fit into the new size."""
        self.tabs.place()

    def on_screen_suspend(self) -> None:
        """Clear the footer: a dialog has keys of its own."""
        self.view.redraw_lines()

    def on_screen_resume(self) -> None:
        """Show the footer again."""
        self.view.redraw()

    # -- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Leave a key that begins a text to the text that is being typed."""
        typing = action == "press" and self.tabs.filter_line.has_focus
        return not (typing and KEY_MAP.begins_text(str(parameters[0])))

    def action_press(self, key: str) -> None:
        """Do what a key means on the present tab."""
        action = KEY_MAP.action(key, self.tabs.shown.name)
        if action is not None:
            self.perform(action, key if action.name == "proposal" else "")

    def perform(self, action: Action, argument: str = "") -> None:
        """Call what the table names: a method of a part, or of the screen itself."""
        method, *given = action.does
        attrgetter(str(method))(self)(*given, *([argument] if argument else []))

    def on_key(self, event: events.Key) -> None:
        """Drop the filter on Escape, or go back up; any key takes the alarm of an expired rule away."""
        self.desk.proposals.numbers.press(self.desk.clock())
        self.rules.on_key(event)
        if self.bars.welcome:
            self.bars.welcome = ""
            self.desk.feed.welcomed()
            self.desk.redraw()
        if event.key == "escape":
            panel = self.tabs.filtered
            if not panel.rows.filter and not self.tabs.filter_line.display and self.rows.back():
                return
            self.tabs.close_filter()
            panel.set_filter("")

    def command(self) -> None:
        """Ask for a command and run it."""
        self.app.push_screen(CommandDialog(self.commands, self._history), self.run_command)

    def commands(self) -> tuple[Command, ...]:
        """Return the commands there are now, on this tab."""
        rows = [row for row in KEY_MAP.actions if row.tab in ("", self.tabs.shown.name)]
        sources, proposals = self.tabs.panels["sources"].rows.items, self.desk.proposals.listed
        return commands(rows, offer(self.desk.current(), self.tabs.panel, sources, proposals))

    def run_command(self, call: Call | None) -> None:
        """Carry out a command."""
        if call is not None:
            self.perform(*call)

    def help(self) -> None:
        """Show the keys."""
        title = self.tabs.panel.spec.title
        self.app.push_screen(HelpDialog(f"{self.tabs.shown.title}: {title}", self.view.here()))

    def mouse(self) -> None:
        """Leave the mouse to the terminal, for selecting text, or take it back."""
        driver = self.app._driver
        if isinstance(driver, ResilientDriver):
            ours = driver.turn_mouse()
            words = "the mouse is fwtop's again" if ours else "the mouse selects text; {mouse} ends that"
            self.desk.say(KEY_MAP.words(words))
        else:
            self.desk.say("this terminal has no mouse")

    def graph(self, unit: str = "") -> None:
        """Change what the history graph shows."""
        following = UNITS[(UNITS.index(self.bars.unit) + 1) % len(UNITS)]
        self.bars.unit = next((one for one in UNITS if one == unit), following)
        self.desk.say(f"the graph shows {_GRAPH_WORDS[self.bars.unit]}")

    def theme(self, name: str) -> None:
        """Change the colours."""
        PALETTE.use(name)
        for lines in self.query(Lines):
            lines.repaint()
        self.view.redraw()

    def slow(self, answer: str) -> None:
        """Send less to the terminal, or as much as usual."""
        self.be_slow(answer == "on")

    # -- clicks, and the filter's input line

    def on_clicked(self, message: Clicked) -> None:
        """Press a key, go to a tab or to a time, select a row."""
        value = message.value
        match message.widget:
            case Footer():
                self.action_press(value) if value else self.desk.say("the digit of a proposal previews it")
            case TabBar():
                self.tabs.show(value)
            case Panel() as panel:
                self.tabs.focus(panel.spec.name)
                if value < len(panel.rows.items):
                    panel.move(value - panel.rows.selected, self.desk.now())
            case TimeBar():
                self.session.player("seek", value)
            case Graph():
                self._show_second(value)

    def _show_second(self, second: float) -> None:
        """Put the graph's cursor on a second and say what happened then; the same second again removes it.

        A recording goes to that second.
        """
        if self.desk.feed.player is not None:
            self.session.player("seek", second)
            return
        bars = self.bars
        bars.cursor = None if bars.cursor == second else second
        point = bars.history.at(second)
        if bars.cursor is None or point is None:
            self.desk.say("")
            return
        flow, at = point.flow, utc(second)
        parts = (
            f"my rules {number(flow.mine)}, other firewall {number(flow.other)}, kernel {number(flow.kernel)}"
        )
        told = f"{at}: {number(flow.arrives)} pps arrived, {number(flow.reaches)} reached you; {parts}"
        self.desk.say(told)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        if self.tabs.filter_line.display:
            self.tabs.filtered.set_filter(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter."""
        self.tabs.close_filter()

    # -- what the application tells

    def tell_fault(self, line: str) -> None:
        """Tell of something that failed and was survived; of drawing that fails each time not each time."""
        self.desk.log.note(FAULT, line, self.desk.now())
        if isinstance(self.app.screen, Dialog):
            self.app.screen.trouble = line
        what, now = line.partition(";")[0], time.monotonic()  # without the log's path
        if not self.view.drawing:
            self.bars.message.say(line, BAD)
            self.call_later(self.view.redraw)
        elif now - self._told.get(what, -math.inf) > _TOLD_SECONDS:
            self._told[what] = now
            self.bars.message.say(line, BAD)

    def tell_wrong_settings(self, lines: Sequence[str]) -> None:
        """Name what is wrong in the settings: the first in the status line, all in the log."""
        for line in lines:
            self.desk.log.note(SETTINGS, line, self.desk.now())
        more = f" (and {len(lines) - 1} more: fwtop config)" if len(lines) > 1 else ""
        self.desk.say(f"{lines[0]}{more}", WARN)
