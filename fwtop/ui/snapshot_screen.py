"""The main screen as far as it shows snapshots: what is remembered, laid out and drawn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingsMap

from fwtop.model.rule import ACTIVE_STATES, RuleStatus
from fwtop.model.traffic.snapshot import Payload, Snapshot, Source, TrafficPart
from fwtop.ui.actions.log import EXPORTED, FAULT, MACHINE, REFUSED, SETTINGS
from fwtop.ui.actions.machine_rules import MachineRulesWatch
from fwtop.ui.actions.news import News
from fwtop.ui.actions.packet_actions import PacketActions
from fwtop.ui.actions.player_actions import PlayerActions
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.actions.rule_dialogs import ScreenDialogs
from fwtop.ui.actions.session_actions import SessionActions
from fwtop.ui.actions.trend_actions import TrendActions
from fwtop.ui.bars.header import HeaderState
from fwtop.ui.bars.status_bars import StatusBars, StatusMessage
from fwtop.ui.bars.toasts import WIDEST_TOAST
from fwtop.ui.dialogs.dialog import DetailsDialog, Dialog
from fwtop.ui.dialogs.packet_dialog import PacketDialog
from fwtop.ui.drawing.layout import HEADER_ROWS
from fwtop.ui.drawing.partial import LinkBudget
from fwtop.ui.drawing.style import BAD, STRONG, TEXT, WARN, Line
from fwtop.ui.feed import Feed
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.path import path_lines, stage_details
from fwtop.ui.lists.rows import Item
from fwtop.ui.lists.rules import effect_and_facts, effect_lines
from fwtop.ui.lists.scope import PANELS as PART_PANELS
from fwtop.ui.lists.scope import PartView, Scope
from fwtop.ui.lists.table import CellContext
from fwtop.ui.settings import Settings
from fwtop.ui.state.history import RecentRates
from fwtop.ui.state.packets import PacketRow
from fwtop.ui.state.path import Stage
from fwtop.ui.state.rules import RuleEffects
from fwtop.ui.tab_screen import TabScreen
from fwtop.ui.tabs import TAB, Content

_SLOW_LIST_SECONDS = (
    5.0  # at least between two drawings of long lists with --slow: in a flood all rows change
)
_CLOCK_SECONDS, _EARLY_SECONDS = 1.0, 0.05
_TOLD_SECONDS = 60.0  # the same drawing that fails again isn't told again so soon


class SnapshotScreen(TabScreen, inherit_bindings=False):
    """Passes snapshots to bars, panels and texts; what keys do is up to the subclass."""

    def __init__(self, feed: Feed, *, clock: Callable[[], float], slow: bool, settings: Settings) -> None:
        super().__init__(
            StatusBars(StatusMessage(clock)),
            slow=slow,
            recorded=feed.player is not None,
            columns=settings.columns,
        )
        self._bindings = BindingsMap(KEY_MAP.bindings())  # the operator's keys, instead of the class's
        self.tab = TAB[settings.first_tab]
        self.bars.in_bits = settings.graph_unit == "bits"
        self.bars.graph.seconds = settings.rates.graph_seconds
        self.feed = feed
        self.snapshot: Snapshot | None = None
        self.effects = RuleEffects()
        self.scope = Scope()
        self.parts = PartView(feed.controls, self.scope)
        self.trends = RecentRates()
        self._noted = 0.0  # the time of the last snapshot
        self._listed = -math.inf  # when the long lists were drawn
        self._budget = LinkBudget()
        self.sent: Callable[[], int] = lambda: 0  # bytes that the terminal took so far
        self._lists_due = True
        self._redrawn = -math.inf  # when header and status were drawn
        self._wanted = ""  # the panel that had the keys without the operator's choice
        self._drawing = 0  # calls of `redraw` and `redraw_lines` under way
        self._told: dict[str, float] = {}  # faults of drawing, and when they were told
        self._clock = clock
        dialogs = ScreenDialogs(self, feed.controls, self._known_clients)
        self.actions = RuleActions(
            feed.controls,
            dialogs,
            say=self.say,
            clock=clock,
            installed=self.place_again,
            current=self.current_snapshot,
        )
        self.session = SessionActions(
            feed,
            self.actions,
            choose=dialogs.choose,
            say=self.say,
            current=self.current_snapshot,
            leave=lambda: self.app.exit(return_code=0),
            exported=lambda text: self.news.note(EXPORTED, text, self.now()),
        )
        self.machine = MachineRulesWatch(
            feed.controls,
            start=self.begin,
            told=lambda text: self.news.alarm(MACHINE, text, self.now()),
            changed=self._draw_machine_rules,
        )
        self.player = PlayerActions(feed.player, self.say)
        self.news = News(self.actions, clock)
        self.packets = PacketActions(
            self.packet_panel,
            self.texts["packet"],
            feed.controls,
            say=self.say,
            start=self.begin,
            later=self.set_timer,
        )

        self.history = TrendActions(
            (self.panels[name] for name in TAB["trends"].panels),
            feed.controls,
            start=self.begin,
            redraw=self.redraw,
        )

    def compose(self) -> ComposeResult:
        """Yield all widgets; `arrange` places them."""
        yield from self.bars
        yield from self.compose_tabs()

    def details_dialog(self, item: Item) -> DetailsDialog:
        """Add a decoded sample packet where the row stands for packets."""
        if isinstance(item, PacketRow):
            dissect = partial(self.feed.controls.dissect_packet, item.shown, item.row)
        elif isinstance(item, Source | Payload):
            dissect = partial(self.feed.controls.dissect, item)
        else:
            return super().details_dialog(item)
        return PacketDialog(self._details_title(item), self._live_details(item), dissect)

    def on_mount(self) -> None:
        """Lay out and start the countdowns."""
        self.place()
        self.set_interval(_CLOCK_SECONDS, self._redraw_clocks)

    def on_resize(self, _: events.Resize) -> None:
        """Fit into the new size."""
        self.place()

    def take(self, snapshot: Snapshot) -> None:
        """Show a new snapshot."""
        self.snapshot = snapshot
        with self._as_drawing():
            with self.surviving():
                self._note(snapshot, self.now())
            room = not self.slow or self._has_room()
            self._lists_due = room and not (self.slow and self._lists_are_new())
            if room:
                with self.surviving():
                    self.place_again()  # which moves lists
            self.redraw()
        self._lists_due = True  # what keys and resizing change is drawn at once
        self._ask_part()
        if snapshot.origin.kind == "live":
            self.machine.refresh(snapshot.mitigations, shown=self.panels["machine_rules"].display)

    def _draw_machine_rules(self) -> None:
        """Draw a new reading where it is shown: long lists elsewhere have their own time."""
        if self.panels["machine_rules"].display:
            self.redraw()

    def _ask_part(self) -> None:
        """Ask for the tables of the part that is shown; the next answer replaces this one."""
        if self.parts.part != TrafficPart():
            self.begin(self._take_part, group="part", exclusive=True)

    async def _take_part(self) -> None:
        if await self.parts.ask():
            self.redraw()

    def _note(self, snapshot: Snapshot, now: float) -> None:
        """Remember what later frames are compared with."""
        self.session.note(snapshot)
        if snapshot.origin.kind == "live":
            self.actions.expiry.update(snapshot.mitigations, now)
        self._focus_for(snapshot)
        if self.feed.player is not None:
            self.bars.history.rebuild(*self.feed.player.past())
            if now < self._noted:  # it went back: what was seen since hasn't happened yet
                self.effects, self.trends = RuleEffects(), RecentRates()
        elif not self._noted:
            self._recall()
        self._noted = now
        self.news.take(snapshot, self.feed.player.state if self.feed.player is not None else None)
        self.effects.take(snapshot)
        self.scope.take(snapshot, now)
        rates = [(f"attack {attack.key}", attack.pps) for attack in snapshot.judgement.attacks]
        self.trends.note(
            [*rates, *((f"rule {item.rule.id}", item.pps) for item in snapshot.mitigations)], now
        )
        self.bars.history.take(snapshot, now)

    def _recall(self) -> None:
        """Begin with what a recorder saw before the screen was opened."""
        past, rules = self.feed.past()
        if past:
            self.bars.history.rebuild(past, rules)
            since = time.strftime("%H:%M:%SZ", time.gmtime(past[0].at))
            self.say(f"a recorder was running: what it saw since {since} is in the graph")

    def content(self) -> Content:
        """Return how much there is to show, for the layout."""
        shot = self.current_snapshot()
        if shot is None:
            return Content(focused=self._focused)
        judgement = shot.judgement
        return Content(
            self._lines_of("attacks", len(judgement.attacks)),
            self._lines_of("proposals", len(judgement.proposals)),
            self._lines_of("rules", len(shot.mitigations)),
            self._lines_of("all_rules", len(shot.mitigations)),
            len(self._effect_lines()) + 1,
            packets=bool(judgement.attacks) and not self.slow and shot.origin.kind != "session",
            focused=self._focused,
        )

    def _lines_of(self, name: str, items: int) -> int:
        """Return the lines that a panel needs: as measured when it was drawn, one a row before that."""
        panel = self.panels[name]
        return max(panel.wanted, items) if items and panel.display else items

    def now(self) -> float:
        """Return the time that ages and countdowns refer to; a recording has its own."""
        if self.snapshot is not None and self.snapshot.origin.kind != "live":
            return self.snapshot.started + self.snapshot.seconds
        return self._clock()

    def current_snapshot(self) -> Snapshot | None:
        """Return the snapshot with the guardian's newest answers."""
        return self.actions.overlay.over(self.snapshot, self._clock()) if self.snapshot is not None else None

    def _known_clients(self) -> int:
        """Return how many client-like packets harm is measured on."""
        return self.snapshot.judgement.baseline_packets if self.snapshot is not None else 0

    def header_state(self) -> HeaderState:
        """Return what the bars show beside the snapshot."""
        return HeaderState(self.now(), self.session.paused, self.feed.controls.readonly, self.slow)

    def _focus_for(self, snapshot: Snapshot) -> None:
        """Direct the keys, until the operator chooses, to where something can be done."""
        if self._touched or self.tab.name != "overview":
            return
        judgement = snapshot.judgement
        wanted = "proposals" if judgement.proposals else "attacks" if judgement.attacks else "sources"
        if wanted != self._wanted or self.panels[wanted].display:  # there may be no room for it
            self._wanted = self._focus["overview"] = wanted

    def _has_room(self) -> bool:
        """Whether a slow link may get a list now; what a key asks for doesn't wait."""
        self._budget.note(self._clock(), self.sent())
        width, height = self.app.size
        return self._budget.has_room(width * height)

    def _lists_are_new(self) -> bool:
        return 0 <= self._clock() - self._listed < _SLOW_LIST_SECONDS

    @contextmanager
    def _as_drawing(self) -> Iterator[None]:
        """Do something that draws; a fault in it doesn't ask for another drawing."""
        self._drawing += 1
        try:
            yield
        finally:
            self._drawing -= 1

    def redraw(self) -> None:
        """Draw the last snapshot, behind dialogs too; only what changed goes to the terminal."""
        snapshot = self.current_snapshot()
        with self._as_drawing():
            if snapshot is not None:
                with self.drawing("lists"):
                    self._redraw_lists(snapshot)
            self.redraw_lines()
            if isinstance(self.app.screen, Dialog):
                self.app.screen.draw()

    def _redraw_lists(self, snapshot: Snapshot) -> None:
        context = CellContext(
            self.now(),
            slow=self.slow,
            snapshot=snapshot,
            scope=self.scope,
            trends=self.trends,
            log=self.news.log.entries,
            machine=self.machine.rules.rows() if self.panels["machine_rules"].display else (),
            part=self.parts.words(),
            history=self.history.answer,
        )
        part = self.parts.over(snapshot)
        if self._lists_due:
            self._listed = self._clock()
        for name, panel in self.panels.items():
            if panel.display and (self._lists_due or panel.blank or name not in PART_PANELS):
                with panel.guarded():
                    panel.take(part if name in PART_PANELS else snapshot, context)
        self._draw_effect()
        self._draw_funnel(snapshot)
        with self.surviving():
            self.packets.refresh(self.snapshot, closely=self.tab.name == "packets", now=self._clock())
            self.history.refresh(self.now())

    def _draw_effect(self) -> None:
        text = self.texts["effect"]
        if text.display:
            with text.guarded():
                text.show(self._effect_lines())

    def _draw_funnel(self, snapshot: Snapshot) -> None:
        text = self.texts["funnel"]
        if text.display:
            with text.guarded():
                text.show(path_lines(snapshot, text.box.width, text.box.height, slow=self.slow))
        self._draw_stage()

    def _draw_stage(self) -> None:
        text, selected = self.texts["stage"], self.panels["path"].current()
        if not text.display:
            return
        with text.guarded():
            title, lines = stage_details(selected, self.now()) if isinstance(selected, Stage) else ("", [])
            text.show([[(title, STRONG)], *lines])

    def action_move(self, delta: int) -> None:
        """Select another row; what the screen tells of it follows at once."""
        super().action_move(delta)
        self._draw_stage()

    def _effect_lines(self) -> list[Line]:
        """Write what changed with the selected rule, or else with the newest active one."""
        shot = self.current_snapshot()
        active = (
            [item for item in shot.mitigations if item.state in ACTIVE_STATES] if shot is not None else []
        )
        selected = self.selected_rule() or max(active, key=lambda item: item.rule.created, default=None)
        if selected is None:
            return []
        if self.tab.name == "rules":
            return effect_and_facts(selected, self.effects, self.now())
        return effect_lines(selected, self.effects)

    def _redraw_clocks(self) -> None:
        """Let the clocks in header and status go on where no snapshot came that drew them, too."""
        if time.monotonic() - self._redrawn >= _CLOCK_SECONDS - _EARLY_SECONDS:
            self.redraw_lines()

    def redraw_lines(self) -> None:
        """Draw header, banner, status and footer."""
        self._redrawn = time.monotonic()
        with self._as_drawing(), self.drawing("lines"):
            keys = self.app.screen is self
            snapshot = self.current_snapshot()
            self.bars.draw(snapshot, self.header_state(), tab=self.tab.name, keys=keys)
            with self.toasts.guarded():
                self._draw_toasts(snapshot)
            if self.feed.player is not None and self.time_bar.display:
                with self.time_bar.guarded():
                    self.time_bar.write(self.feed.player.state)
            if self.tab_bar.display:
                with self.tab_bar.guarded():
                    self._draw_tabs(snapshot)

    def _draw_tabs(self, snapshot: Snapshot | None) -> None:
        rules = snapshot.mitigations if snapshot is not None else ()
        active = sum(item.state in ACTIVE_STATES for item in rules)
        scoped = f"only {self.scope.letter(self.scope.chosen)}" if self.scope.chosen else ""
        if self.tab.name == "log":
            self.news.log.seen()
        counts = {"rules": active, "log": self.news.log.unread}
        self.tab_bar.write(self.tab.name, counts, scoped)

    def _draw_toasts(self, snapshot: Snapshot | None) -> None:
        """Draw the toasts over the graph; without one above the status, where they hide no heads."""
        columns = self.app.size[0]
        lines = self.news.lines(snapshot, min(columns - 2, WIDEST_TOAST)) if self.tab_bar.display else []
        bottom = self.time_bar if self.time_bar.display else self.bars["status"]
        graph = self.tab_bar.box.y > HEADER_ROWS
        self.toasts.write(lines, HEADER_ROWS if graph else bottom.box.y - len(lines), columns)

    def say(self, text: str, style: Style = TEXT) -> None:
        """Show a message for some seconds; what was refused or failed is worth a line of the log, too."""
        if style is BAD:
            self.news.note(REFUSED, text, self.now())
        self.bars.message.say(text, style)
        self.redraw()

    def tell_fault(self, line: str) -> None:
        """Tell of something that failed and was survived; of drawing that fails each time not each time."""
        self.news.note(FAULT, line, self.now())
        if isinstance(self.app.screen, Dialog):
            self.app.screen.trouble = line
        what, now = line.partition(";")[0], time.monotonic()  # without the log's path
        if not self._drawing:
            self.bars.message.say(line, BAD)
            self.call_later(self.redraw)
        elif now - self._told.get(what, -math.inf) > _TOLD_SECONDS:
            self._told[what] = now
            self.bars.message.say(line, BAD)

    def tell_wrong_settings(self, lines: Sequence[str]) -> None:
        """Name what is wrong in the settings: the first in the status line, all in the log."""
        for line in lines:
            self.news.note(SETTINGS, line, self.now())
        more = f" (and {len(lines) - 1} more: fwtop config)" if len(lines) > 1 else ""
        self.say(f"{lines[0]}{more}", WARN)

    def refuse(self, line: str) -> None:
        """Say why a key does nothing."""
        self.say(line, BAD)

    def on_screen_suspend(self) -> None:
        """Clear the footer: a dialog has keys of its own."""
        self.redraw_lines()

    def on_screen_resume(self) -> None:
        """Show the footer again."""
        self.redraw()

    def selected_rule(self) -> RuleStatus | None:
        """Return the selected row if it is a rule."""
        item = self.panel.current()
        return item if isinstance(item, RuleStatus) else None
