"""The main screen: snapshots go to its panels, keys to whoever changes the machine or the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from fwtop.model.rule import RuleStatus
from fwtop.model.snapshot import Snapshot
from fwtop.ui.columns import Scene
from fwtop.ui.desk import Desk
from fwtop.ui.desk_screen import Dialogs
from fwtop.ui.effects import Effects
from fwtop.ui.face import Face, Message
from fwtop.ui.facts import attack_facts
from fwtop.ui.feed import Feed
from fwtop.ui.header import Mood
from fwtop.ui.items import Item
from fwtop.ui.keys import bindings
from fwtop.ui.palette import BAD, TEXT
from fwtop.ui.panel_screen import PanelScreen
from fwtop.ui.rules_screen import RulesScreen
from fwtop.ui.session_desk import SessionDesk
from fwtop.ui.sheets import FactsSheet, help_lines


class MainScreen(PanelScreen, inherit_bindings=False):
    """Hands snapshots to the panels and keys to whoever acts on the machine."""

    BINDINGS: ClassVar[list[BindingType]] = list(bindings())

    def __init__(self, feed: Feed, *, clock: Callable[[], float], slow: bool) -> None:
        super().__init__(Face(Message(clock)))
        self.feed = feed
        self.snapshot: Snapshot | None = None
        self.effects = Effects()
        self._clock = clock
        self._slow = slow
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
        yield from self.compose_panels()

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

    # -- acting

    def action_attacks(self) -> None:
        """Show the evidence."""
        if self.snapshot is not None:
            self.app.push_screen(FactsSheet("attacks", attack_facts(self.snapshot, self.now())))

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(FactsSheet("keys", help_lines()))

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
        """Bring the rules into sight when one went in."""
        self.reveal("rules")

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
