"""Snapshots on the screen: what is remembered of them, how much there is to show, and the drawing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fwtop.analysis.rule_readings import Change
from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.traffic.snapshot import NOTHING, Snapshot
from fwtop.render.numbers import utc
from fwtop.render.verdict import active_rules
from fwtop.ui.actions.desk import Desk, MachineRulesWatch, TrendWatch
from fwtop.ui.actions.dialog import Dialog
from fwtop.ui.actions.log import WIDEST_TOAST, News
from fwtop.ui.actions.packets import PacketActions
from fwtop.ui.actions.row_actions import RowActions
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.actions.session_actions import SessionActions
from fwtop.ui.actions.tab_actions import TabActions
from fwtop.ui.bars import not_acting, pending
from fwtop.ui.graph import LABEL, LEGEND
from fwtop.ui.header.lines import HeaderState
from fwtop.ui.keys import KEY_MAP, Here
from fwtop.ui.layout import HEADER_ROWS, Box, Guarded
from fwtop.ui.lists.attacks import setup_lines
from fwtop.ui.lists.history import RecentRates
from fwtop.ui.lists.numbers import HARM_LIMIT
from fwtop.ui.lists.panels import past_attacks
from fwtop.ui.lists.path import path_lines, stage_details
from fwtop.ui.lists.proposals import in_brief
from fwtop.ui.lists.rows import PART_PANELS
from fwtop.ui.lists.rules import RuleEffects, effect_lines
from fwtop.ui.lists.stages import Stage
from fwtop.ui.lists.table import CellContext
from fwtop.ui.style import STRONG, TEXT, Line, fit, width_of
from fwtop.ui.tabs import TAB, Content
from fwtop.ui.updates import LinkBudget

_SLOW_LIST_SECONDS = 5.0  # at least between two drawings of long lists with --slow: in a flood all change
_BRIEF_CELLS = 40  # of what a key does
_CLOCK_SECONDS = 0.95  # a little early


class SnapshotView:
    """Passes snapshots to bars, panels and texts; `guard` is the screen, which survives what fails here."""

    def __init__(
        self,
        desk: Desk,
        guard: Guarded,
        *,
        tabs: TabActions,
        rules: RuleActions,
        rows: RowActions,
        packets: PacketActions,
        session: SessionActions,
    ) -> None:
        self._desk = desk
        self._guard = guard
        self._tabs = tabs
        self._rules = rules
        self._rows = rows
        self._packets = packets
        self._session = session
        self.news = News(desk.log, desk.clock, rules.expiry, rules.installed_rules)
        self.machine = MachineRulesWatch(desk, self._machine_changed)
        self._history = TrendWatch(desk)
        self.sent: Callable[[], int] = lambda: 0  # bytes that the terminal took so far
        self.drawing = 0  # calls of `redraw` and `redraw_lines` under way
        self._effects = RuleEffects()
        self._trends = RecentRates()
        self._payloads = False  # they have a place
        self._noted = 0.0  # the time of the last snapshot
        self._listed = -math.inf  # when the long lists were drawn
        self._lists_due = True
        self._looked = (False, 0)  # whether proposals were shown, and of which attack
        self._redrawn = -math.inf  # when header and status were drawn
        self._budget = LinkBudget()
        tabs.measure = self._content
        desk.redraw = self.redraw

    def take(self, snapshot: Snapshot) -> None:
        """Show a new snapshot."""
        desk, tabs = self._desk, self._tabs
        desk.newest = snapshot
        if self._session.paused:  # what is listed holds still; verdict, graph, log and countdowns go on
            with self._as_drawing(), self._guard.surviving():
                self._remember(snapshot, desk.now())
            self.redraw_lines()
            return
        desk.snapshot = snapshot
        with self._as_drawing():
            with self._guard.surviving():
                self._remember(snapshot, desk.now())
                self._note(snapshot)
            self._list_proposals(desk.current())
            room = not desk.slow or self._has_room()
            new = 0 <= desk.clock() - self._listed < _SLOW_LIST_SECONDS
            self._lists_due = room and not (desk.slow and new)
            if room:
                with self._guard.surviving():
                    tabs.place_again()  # which moves lists
            self.redraw()
        self._lists_due = True  # what keys and resizing change is drawn at once
        self._rows.ask_part()
        if snapshot.origin.kind == "live":
            self.machine.refresh(snapshot.mitigations, shown=tabs.panels["machine_rules"].display)

    def _note(self, snapshot: Snapshot) -> None:
        """Remember what is listed, for the keys that choose from it."""
        judgement = snapshot.judgement
        # Where something can be done.
        self._tabs.suggest(
            "proposals" if judgement.proposals else "attacks" if judgement.attacks else "sources"
        )
        self._desk.scope.take(snapshot)

    def _remember(self, snapshot: Snapshot, now: float) -> None:
        """Remember what later frames are compared with."""
        player, history, judgement = self._desk.feed.player, self._desk.bars.history, snapshot.judgement
        self._session.note(snapshot)
        if snapshot.origin.kind == "live":
            self._rules.expiry.update(snapshot.mitigations, now, snapshot.losses)
        if player is not None:
            history.rebuild(player.past())
            if now < self._noted:  # it went back: what was seen since hasn't happened yet
                self._effects, self._trends = RuleEffects(), RecentRates()
        elif not self._noted:
            self._recall()
        self._noted = now
        self.news.take(snapshot, player.state if player is not None else None)
        self._effects.take(snapshot)
        rates = [(f"attack {attack.id}", attack.pps) for attack in judgement.attacks]
        rates += [(f"rule {item.rule.id}", item.pps) for item in snapshot.mitigations]
        self._trends.note(rates, now)
        history.take(snapshot, now)

    def _recall(self) -> None:
        """Begin with what a recorder saw before the screen was opened."""
        past = self._desk.feed.past()
        if past:
            self._desk.bars.history.rebuild(past)
            since = utc(past[0].at)
            self._desk.say(f"a recorder was running: what it saw since {since} is in the graph")

    def _content(self) -> Content:
        """Return how much there is to show, for the layout."""
        desk, shot = self._desk, self._desk.current()
        judgement = shot.judgement
        found = bool(judgement.payloads or shot.tables.payloads)
        self._payloads = found or (self._payloads and bool(judgement.attacks))  # places don't come and go
        return Content(
            self._lines_of("attacks", len(desk.proposals.attacks(judgement.attacks))),
            self._lines_of("proposals", len(desk.proposals.rows())) or bool(judgement.proposals),
            self._lines_of("rules", len(shot.mitigations)),
            self._lines_of("all_rules", len(shot.mitigations)),
            len(self._effect_lines()),
            self._lines_of("services", len(judgement.services)),
            self._lines_of("past", len(past_attacks(desk.log.entries, desk.feed.past_attacks()))),
            len(shot.wants),
            packets=bool(judgement.attacks) and not desk.slow and shot.origin.kind != "session",
            payloads=self._payloads,
            trends=self._history.may_tell and desk.feed.player is None,
            focused=self._tabs.focused,
        )

    def _lines_of(self, name: str, items: int) -> int:
        """Return the lines that a panel needs: as measured when it was drawn, one a row before that."""
        panel = self._tabs.panels[name]
        return max(panel.wanted, items) if items and panel.display else items

    def _list_proposals(self, snapshot: Snapshot) -> None:
        """Number the proposals; anew where the operator looks at the list again, or a recording moves."""
        desk, listed = self._desk, self._desk.proposals
        looked = (self._tabs.panels["proposals"].display, desk.scope.chosen)
        anew = listed.moved or looked != self._looked or desk.feed.player is not None
        self._looked, listed.moved = looked, False
        held = isinstance(desk.screen.app.screen, Dialog)
        listed.take(snapshot, desk.scope.chosen, desk.clock(), anew=anew, seen=looked[0], held=held)

    def _has_room(self) -> bool:
        """Whether a slow link may get a list now; what a key asks for doesn't wait."""
        self._budget.note(self._desk.clock(), self.sent())
        width, height = self._desk.size
        return self._budget.has_room(width * height)

    # -- drawing

    @contextmanager
    def _as_drawing(self) -> Iterator[None]:
        """Do something that draws; a fault in it doesn't ask for another drawing."""
        self.drawing += 1
        try:
            yield
        finally:
            self.drawing -= 1

    def redraw(self) -> None:
        """Draw the last snapshot, behind dialogs too; only what changed goes to the terminal."""
        snapshot = self._desk.current()
        with self._as_drawing():
            if snapshot is not NOTHING:
                with self._guard.drawing("lists"):
                    self._list_proposals(snapshot)
                    self._redraw_lists(snapshot)
            self.redraw_lines()
            in_front = self._desk.screen.app.screen
            if isinstance(in_front, Dialog):
                in_front.draw()

    def _redraw_lists(self, snapshot: Snapshot) -> None:
        desk, tabs, parts = self._desk, self._tabs, self._rows.parts
        context = CellContext(
            desk.now(),
            slow=desk.slow,
            snapshot=snapshot,
            scope=desk.scope,
            trends=self._trends,
            log=desk.log.entries,
            earlier=desk.feed.past_attacks(),
            machine=self.machine.rows() if tabs.panels["machine_rules"].display else (),
            part=parts.words(),
            history=self._history.answer,
            brief=tabs.shown.name == "overview",
            proposals=desk.proposals,
        )
        part = parts.over(snapshot)
        if self._lists_due:
            self._listed = desk.clock()
        for name, panel in tabs.panels.items():
            if panel.display and (self._lists_due or panel.blank or name not in PART_PANELS):
                with panel.guarded():
                    panel.take(part if name in PART_PANELS else snapshot, context)
        self._write("effect", lambda _: self._effect_lines())
        self._write("funnel", lambda box: path_lines(snapshot, box.width, box.height))
        self._write("stage", lambda _: self._stage_lines())
        self._write("setup", lambda box: setup_lines(snapshot, box.width))
        with self._guard.surviving():
            closely = tabs.shown.name == "packets"
            self._packets.refresh(desk.snapshot, closely=closely, now=desk.clock())
            if any(tabs.panels[name].display for name in TAB["trends"].panels):
                self._history.refresh(desk.now())

    def _write(self, name: str, lines: Callable[[Box], list[Line]]) -> None:
        text = self._tabs.texts[name]
        if text.display:
            with text.guarded():
                text.show(lines(text.box))

    def _stage_lines(self) -> list[Line]:
        selected = self._tabs.panels["path"].current()
        if not isinstance(selected, Stage):
            return []
        title, lines = stage_details(selected, self._desk.now())
        return [[(title, STRONG)], *lines]

    def _effect_lines(self) -> list[Line]:
        """Write what changed with the selected rule, or else with the newest active one."""
        shot = self._desk.current()
        active = [item for item in shot.mitigations if item.state in ACTIVE_STATES]
        selected = self._tabs.selected_rule() or max(active, key=lambda item: item.rule.created, default=None)
        if selected is None:
            return []
        now = self._desk.now() if self._tabs.shown.name == "rules" else None
        return effect_lines(selected, self._effects, now)

    def redraw_clocks(self) -> None:
        """Let the clocks in header and status go on where no snapshot came that drew them, too."""
        if time.monotonic() - self._redrawn >= _CLOCK_SECONDS:
            self.redraw_lines()

    def redraw_lines(self) -> None:
        """Draw header, banner, status and footer."""
        desk, tabs, player = self._desk, self._tabs, self._desk.feed.player
        self._redrawn = time.monotonic()
        with self._as_drawing(), self._guard.drawing("lines"):
            snapshot = desk.current(desk.newest)
            keys = desk.screen.app.screen is desk.screen
            press, does = self._press() if keys and not desk.controls.readonly else ("", "")
            paused, behind = self._session.paused, keys and desk.is_behind
            state = HeaderState(desk.now(), paused, behind, desk.controls.readonly, desk.slow, press, does)
            desk.bars.draw(snapshot, state, desk.log.entries, self.here() if keys else None)
            with tabs.toasts.guarded():
                self._draw_toasts(snapshot)
            if player is not None and tabs.time_bar.display:
                with tabs.time_bar.guarded():
                    tabs.time_bar.write(player.state)
            if tabs.tab_bar.display:
                with tabs.tab_bar.guarded():
                    self._draw_tabs(snapshot)

    def _press(self) -> tuple[str, str]:
        """Return the keys that install what helps most (against several attacks a set), and what that is.

        Of what harms clients only the first, which previews it: there Enter cancels.
        """
        helpful = self._desk.proposals.helpful()
        if not helpful:
            return "", ""
        attacks = {one.incident for one in helpful}
        several = len(attacks) > 1
        first = KEY_MAP.label("protect") if several else str(helpful[0].number)
        does = f"a rule for each of {len(attacks)}" if several else in_brief(helpful[0], _BRIEF_CELLS)
        harms = any(one.harm >= HARM_LIMIT for one in helpful)
        return first if harms else f"{first} {KEY_MAP.label('open')}", does

    def here(self) -> Here:
        """Return what there is for keys to act on."""
        shot, tabs = self._desk.current(), self._tabs
        lost, harmful = shot.guardian.startswith("lost"), {loss.rule for loss in shot.losses if loss.is_harm}
        has = {
            "row": tabs.panel.current() is not None,
            "panels": len(tabs.reachable()) > 1,
            "views": bool(tabs.viewed()),
            "packet": tabs.packet_panel.current() is not None,
            "attack": bool(shot.judgement.attacks),
            "trial": any(one.rule.id not in harmful for one in pending(shot.mitigations)),
            "rule": bool(active_rules(shot)),
            "any_rule": any(one.state in ACTIVE_STATES for one in shot.mitigations),
            "broken": bool(not_acting(shot.mitigations)),
            "ended": (self._rules.expiry.expired or self._rules.expiry.last) is not None,
            "stored": shot.origin.kind != "live" or bool(self._desk.feed.session),
            "paused": self._session.paused,
            "recording": self._desk.feed.player is not None,
            **self._rows.present(),
        }
        return Here(
            tabs.shown.name,
            "lost" if lost else shot.origin.kind,
            lost or bool(self._desk.controls.readonly),
            frozenset(name for name, there in has.items() if there and shot is not NOTHING),
        )

    def _draw_tabs(self, snapshot: Snapshot) -> None:
        desk, shown = self._desk, self._tabs.shown.name
        if shown == "log":
            desk.log.unread = 0
        counts = {"rules": len(active_rules(snapshot)), "log": desk.log.unread}
        scoped = f"only {desk.scope.letter}" if desk.scope.chosen else ""
        self._tabs.tab_bar.write(shown, counts, scoped)

    def _draw_toasts(self, snapshot: Snapshot) -> None:
        """Draw the toasts over the graph's oldest columns, never its legend; without one above the status."""
        tabs, graph = self._tabs, self._desk.bars.graph
        width = (graph.box.width - LEGEND if graph.display else self._desk.size[0]) - 1
        lines = self.news.lines(snapshot, min(width, WIDEST_TOAST)) if tabs.tab_bar.display else []
        bottom = tabs.time_bar if tabs.time_bar.display else self._desk.bars["status"]
        if graph.display:
            tabs.toasts.write(lines, min(LABEL, width - max(map(width_of, lines), default=0)), HEADER_ROWS)
        else:  # whole lines: what stays beside it of the rows below would read on from its text
            whole = [fit([(" ", TEXT), *line], width + 1) for line in lines]
            tabs.toasts.write(whole, 0, bottom.box.y - len(lines))

    def _machine_changed(self, changes: Sequence[Change]) -> None:
        """Tell of alarms, and draw the rules where they are shown: other long lists have their own time."""
        for change in changes:
            self.news.alarm(change, self._desk.now())
        if self._tabs.panels["machine_rules"].display:
            self.redraw()
