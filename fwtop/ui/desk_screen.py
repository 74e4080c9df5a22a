"""What the main screen and the screen of rules have in common: the keys that change rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from textual.screen import Screen

from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.snapshot import Snapshot
from fwtop.ui.cells import Line
from fwtop.ui.desk import Desk
from fwtop.ui.feed import Controls
from fwtop.ui.rule_sheet import Decision, RuleSheet
from fwtop.ui.sheets import AskSheet, FactsSheet

Job = Callable[[Snapshot, RuleStatus | None], Awaitable[None]]


class DeskScreen(Screen[None], inherit_bindings=False):
    """A screen whose keys go to a Desk; a subclass says which rule is selected."""

    desk: Desk

    def current_snapshot(self) -> Snapshot | None:
        """Return the snapshot with the guardian's newest answers."""
        raise NotImplementedError

    def selected_rule(self) -> RuleStatus | None:
        """Return the rule that is selected, if it is one."""
        raise NotImplementedError

    def refuse(self, line: str) -> None:
        """Say why a key does nothing."""
        raise NotImplementedError

    def action_confirm(self) -> None:
        """Keep the unconfirmed rules."""
        self._do(lambda snapshot, _: self.desk.confirm(snapshot))

    def action_undo(self) -> None:
        """Take the selected rule back, or the newest."""
        self._do(self.desk.undo)

    def action_extend(self) -> None:
        """Let the selected rule, or the newest, stay for a time that is asked for."""
        self._do(self.desk.extend)

    def action_change(self) -> None:
        """Replace the selected rule, or the newest, by an edited one."""
        self._do(self.desk.change)

    def action_why(self) -> None:
        """Ask why the selected rule, or the newest, does what it does."""
        self._do(self.desk.why, changes=False)

    def _do(self, job: Job, *, changes: bool = True) -> None:
        snapshot = self.current_snapshot()
        obstacle = self.desk.obstacle(snapshot, previews=not changes)
        if obstacle or snapshot is None:
            self.refuse(obstacle)
            return
        self.run_worker(self._done(job, snapshot), group="desk")

    async def _done(self, job: Job, snapshot: Snapshot) -> None:
        await job(snapshot, self.selected_rule())


class Dialogs:
    """Opens the dialogs that a Desk needs over whatever screen is in front."""

    def __init__(self, screen: Screen[None], controls: Controls) -> None:
        self._screen = screen
        self._controls = controls

    async def ask(self, rule: Rule) -> Decision | None:
        """Preview a rule and let the operator decide."""
        return await self._screen.app.push_screen_wait(RuleSheet(rule, self._controls))

    async def choose(self, title: str, question: str, answers: Sequence[str]) -> str | None:
        """Ask a question with a few answers."""
        return await self._screen.app.push_screen_wait(AskSheet(title, question, answers))

    def show(self, title: str, lines: Sequence[Line]) -> None:
        """Show facts."""
        self._screen.app.push_screen(FactsSheet(title, lines))
