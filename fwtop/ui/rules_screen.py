"""The screen of rules: each with its state, its time left and what it does, and the keys to change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from fwtop.model.rule import RuleStatus
from fwtop.model.snapshot import Snapshot
from fwtop.ui.columns import Scene
from fwtop.ui.desk import Desk
from fwtop.ui.desk_screen import DeskScreen
from fwtop.ui.effects import Effects
from fwtop.ui.face import Face
from fwtop.ui.facts import facts_of
from fwtop.ui.header import Mood
from fwtop.ui.keys import bindings
from fwtop.ui.layout import arrange_rules
from fwtop.ui.palette import BAD
from fwtop.ui.panel import Panel
from fwtop.ui.panels import PanelSpec
from fwtop.ui.rule_facts import effect_lines
from fwtop.ui.sheets import FactsSheet, help_lines
from fwtop.ui.verdict_panels import ALL_RULES_VIEW
from fwtop.ui.widgets import Lines

_SPEC = PanelSpec("all_rules", "Rules", (ALL_RULES_VIEW,), lambda shot, _: shot.mitigations, counted=True)


class RulesScreen(DeskScreen, inherit_bindings=False):
    """Shows the main screen's newest snapshot; it is redrawn whenever that one would be."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(rules=True),
        Binding("escape,m,q,ctrl+c", "back", show=False),
    ]

    def __init__(
        self,
        desk: Desk,
        face: Face,
        effects: Effects,
        *,
        current: Callable[[], Snapshot | None],
        mood: Callable[[], Mood],
    ) -> None:
        super().__init__()
        self.desk = desk
        self.panel = Panel(_SPEC)
        self.panel.active = True
        self._face = Face(face.message, face.history, on_rules=True)
        self._effects = effects
        self._facts = Lines("facts")
        self._current = current
        self._mood = mood

    def compose(self) -> ComposeResult:
        """Hold the lines, the list, and the facts of the selected rule."""
        yield from self._face
        yield self.panel
        yield self._facts

    def on_mount(self) -> None:
        """Lay out and start the countdowns."""
        self.place()
        self.set_interval(1.0, self.redraw)

    def on_resize(self, _: events.Resize) -> None:
        """Fit into the new size."""
        self.place()

    def place(self) -> None:
        """Give every widget its box."""
        width, height = self.app.size
        boxes = arrange_rules(width, height)
        self._face.place(boxes or {})
        self.panel.place(boxes.get("rules") if boxes else None)
        self._facts.place(boxes.get("facts") if boxes else None)
        if boxes is None:
            self._face.apologise(width, height)
        else:
            self.redraw()

    def redraw(self) -> None:
        """Draw everything from the newest snapshot."""
        snapshot, mood = self._current(), self._mood()
        if snapshot is not None:
            self.panel.take(snapshot, Scene(mood.now, slow=mood.slow))
        self._face.draw(snapshot, mood, keys=self.app.screen is self)
        selected = self.selected_rule()
        if self._facts.display:
            lines = effect_lines(selected, self._effects, mood.now) if selected is not None else []
            self._facts.show(lines)

    def on_screen_suspend(self) -> None:
        """Take the footer's keys away: a dialog has its own."""
        self.redraw()

    def on_screen_resume(self) -> None:
        """Show what came in while a dialog was open."""
        self.redraw()

    def current_snapshot(self) -> Snapshot | None:
        """Return the snapshot with the guardian's newest answers."""
        return self._current()

    def selected_rule(self) -> RuleStatus | None:
        """Return the selected rule."""
        item = self.panel.current()
        return item if isinstance(item, RuleStatus) else None

    def refuse(self, line: str) -> None:
        """Say why a key does nothing."""
        self._face.message.say(line, BAD)
        self.redraw()

    def on_panel_pointed(self, message: Panel.Pointed) -> None:
        """Select what was clicked."""
        message.stop()
        self.action_move(message.index - self.panel.rows.selected)

    def action_move(self, delta: int) -> None:
        """Select another rule."""
        self.panel.move(delta, self._mood().now)
        self.redraw()

    def action_page(self, delta: int) -> None:
        """Select a rule a page away."""
        self.action_move(delta * self.panel.page)

    def action_top(self) -> None:
        """Select the first rule."""
        self.panel.follow()
        self.redraw()

    def action_bottom(self) -> None:
        """Select the last rule."""
        self.action_move(len(self.panel.rows.items))

    def action_details(self) -> None:
        """Show everything about the selected rule."""
        selected = self.selected_rule()
        if selected is not None:
            self.app.push_screen(FactsSheet(*facts_of(selected, self._mood().now)))

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(FactsSheet("keys", help_lines()))

    def action_back(self) -> None:
        """Return to the main screen."""
        self.dismiss(None)
