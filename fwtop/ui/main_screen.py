"""The main screen: places the panels, hands snapshots to them and keys to whoever knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from fwtop.model.rule import RuleStatus
from fwtop.model.snapshot import Snapshot
from fwtop.model.text import safe_text
from fwtop.ui.columns import Scene
from fwtop.ui.desk import Desk
from fwtop.ui.desk_screen import DeskScreen, Dialogs
from fwtop.ui.effects import Effects
from fwtop.ui.face import Face, Message
from fwtop.ui.facts import attack_facts, facts_of
from fwtop.ui.feed import Feed
from fwtop.ui.header import Mood
from fwtop.ui.items import Item
from fwtop.ui.keys import bindings
from fwtop.ui.layout import LOWER, UPPER, arrange
from fwtop.ui.palette import BAD, TEXT
from fwtop.ui.panel import Panel
from fwtop.ui.panels import PANELS
from fwtop.ui.rules_screen import RulesScreen
from fwtop.ui.session_desk import SessionDesk
from fwtop.ui.sheets import FactsSheet, help_lines


class MainScreen(DeskScreen, inherit_bindings=False):
    """Panels, header, status and footer."""

    AUTO_FOCUS = ""  # only the filter's input line ever has Textual's focus
    BINDINGS: ClassVar[list[BindingType]] = list(bindings())
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

    def __init__(self, feed: Feed, *, clock: Callable[[], float], slow: bool) -> None:
        super().__init__()
        self.feed = feed
        self.snapshot: Snapshot | None = None
        self.panels = {spec.name: Panel(spec) for spec in PANELS}
        self.face = Face(Message(clock))
        self.effects = Effects()
        self._clock = clock
        self._slow = slow
        self._focused = "sources"
        self._shown = {"upper": "sources", "lower": "proposals", "only": "sources"}
        self._filter = Input(id="filter", placeholder="show only rows with …", compact=True)
        dialogs = Dialogs(self, feed.controls)
        self.desk = Desk(feed.controls, dialogs, say=self.say, clock=clock, installed=self._show_rules)
        self.session = SessionDesk(
            feed,
            self.desk,
            choose=dialogs.choose,
            say=self.say,
            current=self.current_snapshot,
            leave=lambda: self.app.exit(return_code=0),
        )

    def compose(self) -> ComposeResult:
        """Hold all widgets; where they go is `arrange`'s business."""
        yield from self.face
        yield from self.panels.values()
        yield self._filter

    def on_mount(self) -> None:
        """Lay out and start the countdowns."""
        self.place()
        self.set_interval(1.0, self.redraw_lines)

    def on_resize(self, _: events.Resize) -> None:
        """Fit into the new size."""
        self.place()

    # -- drawing

    def take(self, snapshot: Snapshot) -> None:
        """Take a new snapshot over."""
        self.snapshot = snapshot
        self.effects.take(snapshot)
        self.face.history.add(snapshot.tables.totals.pps, self.now())
        self.redraw()

    def now(self) -> float:
        """Return the time that ages and countdowns refer to: a recording has its own."""
        if self.snapshot is not None and self.snapshot.origin.kind != "live":
            return self.snapshot.started + self.snapshot.seconds
        return self._clock()

    def current_snapshot(self) -> Snapshot | None:
        """Return the snapshot with the guardian's newest answers."""
        return self.desk.news.over(self.snapshot, self._clock()) if self.snapshot is not None else None

    def mood(self) -> Mood:
        """Return what the lines say beside the snapshot."""
        return Mood(self.now(), self.session.paused, self.feed.controls.readonly, self._slow)

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

    def redraw(self) -> None:
        """Draw everything from the last snapshot; only what changed goes to the terminal."""
        front = self.app.screen
        if isinstance(front, RulesScreen):
            front.redraw()
            return
        snapshot = self.current_snapshot()
        if snapshot is not None and front is self:
            scene = Scene(self.now(), slow=self._slow, attack=bool(snapshot.judgement.attacks))
            for panel in self.panels.values():
                panel.take(snapshot, scene)
        self.redraw_lines()

    def redraw_lines(self) -> None:
        """Draw header, banner, status and footer: their clocks go on while panels stand still."""
        self.face.draw(self.current_snapshot(), self.mood(), keys=self.app.screen is self)

    def say(self, text: str, style: Style = TEXT) -> None:
        """Show a line of news for a while."""
        self.face.message.say(text, style)
        self.redraw()

    def refuse(self, line: str) -> None:
        """Say why a key does nothing."""
        self.say(line, BAD)

    def on_screen_suspend(self) -> None:
        """Take the footer's keys away: a dialog has its own."""
        self.redraw_lines()

    def on_screen_resume(self) -> None:
        """Show what came in while a dialog was open."""
        self.redraw()

    # -- looking

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

    def action_attacks(self) -> None:
        """Show the evidence."""
        if self.snapshot is not None:
            self.app.push_screen(FactsSheet("attacks", attack_facts(self.snapshot, self.now())))

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(FactsSheet("keys", help_lines()))

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

    # -- acting

    def selected_rule(self) -> RuleStatus | None:
        """Return the selected row if it is a rule."""
        item = self.panel.current()
        return item if isinstance(item, RuleStatus) else None

    def action_draft(self, kind: str) -> None:
        """Preview what a mitigation key means on the selected row."""
        item = self.panel.current()
        self.panel.rows.hold(self.now())
        if isinstance(item, RuleStatus):
            self.say("that is a rule already: u takes it back, c changes it, Enter shows it")
            return
        self._start(kind, item)

    def action_proposal(self, number: int) -> None:
        """Take a proposal by its number."""
        found = self.snapshot.judgement.proposals if self.snapshot is not None else ()
        chosen = next((proposal for proposal in found if proposal.number == number), None)
        if chosen is None:
            self.say(f"there is no proposal {number}")
            return
        self._start("proposal", chosen)

    def _start(self, action: str, item: Item | None) -> None:
        obstacle = self.desk.obstacle(self.snapshot, previews=True)
        if obstacle:
            self.refuse(obstacle)
            return
        self.run_worker(self.desk.propose(action, item), group="desk")

    def _show_rules(self) -> None:
        """Bring the rules into sight when one went in, and leave the keys where they are."""
        if self._focused not in LOWER:
            self._shown["lower"] = "rules"
            self.place()

    def action_rules(self) -> None:
        """Open the screen of rules."""
        screen = RulesScreen(
            self.desk, self.face, self.effects, current=self.current_snapshot, mood=self.mood
        )
        self.app.push_screen(screen)

    # -- the session

    def action_pause(self) -> None:
        """Stop or resume taking snapshots."""
        self.session.pause()

    def action_export(self) -> None:
        """Write a report."""
        self.run_worker(self.session.export(), group="export", exclusive=True)

    def action_leave(self) -> None:
        """Leave; ask first if that takes rules back."""
        if self.session.must_ask():
            self.run_worker(self.session.leave(), group="leave", exclusive=True)
        else:
            self.app.exit(return_code=0)
