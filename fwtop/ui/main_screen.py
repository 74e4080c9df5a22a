"""The one screen: places the panels, hands snapshots to them and keys to whoever knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Input

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.snapshot import Snapshot
from fwtop.model.text import safe_text
from fwtop.ui import header
from fwtop.ui.cells import Line
from fwtop.ui.columns import Scene
from fwtop.ui.desk import Desk
from fwtop.ui.facts import attack_facts, facts_of
from fwtop.ui.feed import Feed
from fwtop.ui.items import Item
from fwtop.ui.keys import bindings
from fwtop.ui.layout import LOWER, MINIMUM, UPPER, Box, arrange
from fwtop.ui.palette import BAD, GOOD, TEXT, WARN
from fwtop.ui.panel import Panel
from fwtop.ui.panels import PANELS
from fwtop.ui.rule_sheet import Decision, RuleSheet
from fwtop.ui.sheets import AskSheet, FactsSheet, help_lines
from fwtop.ui.widgets import Lines

_MESSAGE_SECONDS = 8.0
_KEEP_AND_QUIT = "Keep and quit"
_QUIT = "Quit"


class MainScreen(Screen[None], inherit_bindings=False):
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
        self.paused = False
        self.panels = {spec.name: Panel(spec) for spec in PANELS}
        self.desk = Desk(feed.controls, ask=self._ask, say=self.say, clock=clock)
        self._clock = clock
        self._slow = slow
        self._history = header.History()
        self._focused = "sources"
        self._shown = {"upper": "sources", "lower": "proposals", "only": "sources"}
        self._message: Line = []
        self._message_until = 0.0
        self._lines = {name: Lines(name) for name in ("header", "banner", "status", "footer", "notice")}
        self._filter = Input(id="filter", placeholder="show only rows with …", compact=True)

    def compose(self) -> ComposeResult:
        """Hold all widgets; where they go is `arrange`'s business."""
        yield from self._lines.values()
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
        self._history.add(snapshot.tables.totals.pps, self.now())
        self.redraw()

    def now(self) -> float:
        """Return the time that ages and countdowns refer to: a recording has its own."""
        if self.snapshot is not None and self.snapshot.origin.kind != "live":
            return self.snapshot.started + self.snapshot.seconds
        return self._clock()

    def current_snapshot(self) -> Snapshot | None:
        """Return the snapshot with the guardian's newest answers."""
        return self.desk.news.over(self.snapshot, self._clock()) if self.snapshot is not None else None

    def place(self) -> None:
        """Give every widget its box."""
        width, height = self.app.size
        arrangement = arrange(width, height, self._shown)
        boxes = arrangement.boxes if arrangement is not None else {}
        for name, widget in (*self._lines.items(), *self.panels.items()):
            widget.place(boxes.get(name))
        for name, panel in self.panels.items():
            panel.active = name == self._focused
            panel.tabs = arrangement.tabs.get(name, ()) if arrangement is not None else ()
        if arrangement is None:
            self._filter.display = False
            self._lines["notice"].place(Box(0, 0, width, height))
            self._lines["notice"].show(_too_small(width, height))
            return
        status = boxes["status"]
        self._filter.styles.offset = (status.x, status.y)
        self._filter.styles.width = status.width
        self.redraw()

    def redraw(self) -> None:
        """Draw everything from the last snapshot; only what changed goes to the terminal."""
        snapshot = self.current_snapshot()
        if snapshot is not None and self.app.screen is self:
            scene = Scene(self.now(), slow=self._slow, attack=bool(snapshot.judgement.attacks))
            for panel in self.panels.values():
                panel.take(snapshot, scene)
        self.redraw_lines()

    def redraw_lines(self) -> None:
        """Draw header, banner, status and footer: their clocks go on while panels stand still."""
        snapshot, now = self.current_snapshot(), self._clock()
        lines = self._lines
        width = lines["status"].box.width
        if not lines["status"].display:
            return
        message = self._message if now < self._message_until else []
        waiting = bool(snapshot and header.pending(snapshot.mitigations))
        lines["status"].show([header.status_line(snapshot, message, self.now(), width)])
        keys = header.footer_line(width, waiting=waiting) if self.app.screen is self else []
        lines["footer"].show([keys])
        if snapshot is None:
            return
        mood = header.Mood(self.now(), self.paused, self.feed.controls.readonly, self._slow)
        lines["header"].show(header.header_lines(snapshot, self._history, mood, width))
        height = lines["banner"].box.height
        lines["banner"].show(header.banner_lines(snapshot, self.now(), width, height))

    def say(self, text: str, style: Style = TEXT) -> None:
        """Show a line of news for a while."""
        self._message = [(f" {text}", style)]
        self._message_until = self._clock() + _MESSAGE_SECONDS
        self.redraw()

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

    def action_draft(self, kind: str) -> None:
        """Preview what a mitigation key means on the selected row."""
        item = self.panel.current()
        self.panel.rows.hold(self.now())
        if isinstance(item, RuleStatus):
            self.say("that is a rule already: u takes it back, Enter shows it")
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
            self.say(obstacle, BAD)
            return
        self.run_worker(self.desk.propose(action, item), group="desk")

    async def _ask(self, rule: Rule) -> Decision | None:
        return await self.app.push_screen_wait(RuleSheet(rule, self.feed.controls))

    def action_confirm(self) -> None:
        """Keep the unconfirmed rules."""
        snapshot = self._changeable()
        if snapshot is not None:
            self.run_worker(self.desk.confirm(snapshot), group="desk")

    def action_undo(self) -> None:
        """Take the selected rule back, or the newest."""
        snapshot = self._changeable()
        if snapshot is not None:
            selected = self.panel.current()
            chosen = selected if isinstance(selected, RuleStatus) else None
            self.run_worker(self.desk.undo(snapshot, chosen), group="desk")

    def _changeable(self) -> Snapshot | None:
        snapshot = self.current_snapshot()
        obstacle = self.desk.obstacle(snapshot)
        if obstacle:
            self.say(obstacle, BAD)
        return None if obstacle else snapshot

    # -- the session

    def action_pause(self) -> None:
        """Stop or resume taking snapshots."""
        self.paused = not self.paused
        self.feed.pause(self.paused)
        if self.paused:
            self.say("paused: nothing new is shown until p; observing, rules and timers go on", WARN)
        else:
            self.say("resumed")

    def action_export(self) -> None:
        """Write a report."""
        self.run_worker(self._export(), group="export", exclusive=True)

    async def _export(self) -> None:
        formats = self.feed.controls.export_formats
        chosen: str | None = formats[0]
        if len(formats) > 1:
            question = AskSheet("export", "Write a report of the session so far as", formats)
            chosen = await self.app.push_screen_wait(question)
        if chosen is None:
            return
        try:
            path = await self.feed.controls.export(chosen)
        except FwtopError as error:
            self.say(safe_text(error), BAD)
            return
        self.say(f"written to {safe_text(path)}", GOOD)

    def action_leave(self) -> None:
        """Leave; ask first if that takes rules back."""
        snapshot = self.current_snapshot()
        waiting = header.pending(snapshot.mitigations) if snapshot is not None else []
        if not waiting or self.feed.controls.readonly:
            self.app.exit(return_code=0)
            return
        self.run_worker(self._leave(len(waiting)), group="leave", exclusive=True)

    async def _leave(self, count: int) -> None:
        rules = "1 rule is" if count == 1 else f"{count} rules are"
        text = f"{rules} not confirmed. Leaving takes that back; the traffic it stops will return."
        answer = await self.app.push_screen_wait(AskSheet("quit", text, ("Stay", _KEEP_AND_QUIT, _QUIT)))
        snapshot = self.current_snapshot()
        if answer == _KEEP_AND_QUIT and snapshot is not None:
            await self.desk.confirm(snapshot)
            if header.pending(self.desk.news.over(snapshot, self._clock()).mitigations):
                return  # the status line says why
        if answer in (_KEEP_AND_QUIT, _QUIT):
            self.app.exit(return_code=0)


def _too_small(width: int, height: int) -> list[Line]:
    text = f"fwtop needs {MINIMUM[0]}×{MINIMUM[1]}; this is {width}×{height}"[:width]
    line: Line = [(" " * ((width - len(text)) // 2) + text, WARN)]
    return [*([[]] * ((height - 1) // 2)), line]
