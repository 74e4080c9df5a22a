"""Runs commands on the main screen: what can be named at the moment, and what each command does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.traffic.snapshot import Source
from fwtop.ui.actions.command_dialog import CommandDialog
from fwtop.ui.actions.commands import (
    RULE_COMMANDS,
    TARGET_COMMANDS,
    Call,
    Choice,
    Command,
    History,
    Present,
    commands,
)
from fwtop.ui.actions.rule_actions import Job
from fwtop.ui.actions.rule_from_row import rule_from_targets
from fwtop.ui.drawing.layout import Lines
from fwtop.ui.drawing.themes import PALETTE, THEMES
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.traffic import spared
from fwtop.ui.tabs import TABS

if TYPE_CHECKING:
    from fwtop.ui.app import FwtopApp
    from fwtop.ui.main_screen import MainScreen

_MOST_SOURCES = 20
ALL = "all"


class CommandActions:
    """The command line of the main screen."""

    def __init__(self, screen: MainScreen) -> None:
        self._screen = screen
        self._history = History()
        self._others: dict[str, Callable[[str], None]] = {
            "proposal": lambda number: screen.action_proposal(int(number)),
            "tab": screen.show_tab,
            "filter": self._filter,
            "sort": self._sort,
            "view": self._view,
            "graph": self._graph,
            "theme": self._theme,
            "only": self._only,
            "slow": self._slow,
        }

    def open(self) -> None:
        """Ask for a command and run it."""
        self._screen.app.push_screen(CommandDialog(self.known, self._history), self._run)

    def known(self) -> tuple[Command, ...]:
        """Return the commands there are now, on this tab."""
        rows = [row for row in KEY_MAP.keys if row.tab in ("", self._screen.tab.name)]
        return commands(rows, self._present())

    def _present(self) -> Present:
        screen = self._screen
        shot = screen.current_snapshot()
        rules = [item for item in shot.mitigations if item.state in ACTIVE_STATES] if shot else []
        judgement = shot.judgement if shot else None
        attacks = judgement.attacks if judgement else ()
        return Present(
            tabs=tuple(Choice(tab.name, tab.title) for tab in TABS),
            rules=tuple(Choice(item.rule.id, item.rule.summary) for item in rules),
            proposals=tuple(
                Choice(str(item.number), item.summary) for item in (judgement.proposals if judgement else ())
            ),
            sorts=(*(name for name, _ in screen.panel.rows.row.sorts), "packets"),
            views=tuple(view.name for view in screen.panel.spec.views if view.name),
            themes=tuple(Choice(theme.name, theme.help) for theme in THEMES.values()),
            sources=self._sources(),
            scopes=(
                *(Choice(screen.scope.letter(item.key), item.title) for item in attacks),
                Choice(ALL, "all attacks"),
            ),
        )

    def _sources(self) -> tuple[str, ...]:
        """Return the sources on the screen that a rule can name, without those it would cut off."""
        shown = self._screen.panels["sources"].rows.items[:_MOST_SOURCES]
        found = [item for item in shown if isinstance(item, Source) and not spared(item)]
        return tuple(str(item.prefix) for item in found if item.prefix is not None)

    def _run(self, call: Call | None) -> None:
        if call is not None:
            self._screen.begin(self.run, call, group="command")

    async def run(self, call: Call) -> None:
        """Carry out a command."""
        name, argument = call.command.name, call.argument
        if not argument:
            await self._screen.run_action(call.command.action)
        elif name in RULE_COMMANDS:
            self._on_rule(name, argument)
        elif name in TARGET_COMMANDS:
            self._on_targets(name, argument)
        else:
            self._others[name](argument)

    def _on_rule(self, name: str, rule_id: str) -> None:
        screen, actions = self._screen, self._screen.actions
        shot = screen.current_snapshot()
        found = [item for item in shot.mitigations if item.rule.id == rule_id] if shot else []
        if not found or found[0].state not in ACTIVE_STATES:
            screen.refuse(f"rule {rule_id} is no longer active")
            return
        jobs: dict[str, Job] = {
            "keep": actions.keep,
            "undo": actions.undo,
            "extend": actions.extend,
            "change": actions.change,
            "why": actions.why,
            "repair": actions.repair_one,
        }
        screen.act_on(found[0], jobs[name], changes=name != "why")

    def _on_targets(self, name: str, argument: str) -> None:
        screen = self._screen
        try:
            rule = rule_from_targets(name, argument.split(), screen.now())
        except FwtopError as error:
            screen.refuse(str(error))
            return
        obstacle = screen.actions.obstacle(screen.current_snapshot(), previews=True)
        if obstacle:
            screen.refuse(obstacle)
            return
        screen.begin(screen.actions.install, rule, group="actions")

    # -- what is shown

    def _filter(self, text: str) -> None:
        self._screen.panel.set_filter(text)

    def _sort(self, name: str) -> None:
        self._screen.panel.rows.sort_by(name)
        self._screen.panel.reload()

    def _view(self, name: str) -> None:
        self._screen.panel.show_view(name)

    def _graph(self, unit: str) -> None:
        self._screen.bars.in_bits = unit == "bits"
        self._screen.redraw()

    def _theme(self, name: str) -> None:
        PALETTE.use(name)
        for lines in self._screen.query(Lines):
            lines.repaint()
        self._screen.redraw()

    def _slow(self, answer: str) -> None:
        cast("FwtopApp", self._screen.app).be_slow(answer == "on")

    def _only(self, letter: str) -> None:
        screen = self._screen
        shot = screen.current_snapshot()
        attacks = shot.judgement.attacks if shot else ()
        keys = [item.key for item in attacks if screen.scope.letter(item.key) == letter]
        screen.scope.chosen = keys[0] if keys else ""
        screen.redraw()
