"""The dialogs of the rule keys: what RuleActions asks of them, and how a screen opens them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from textual.screen import Screen

from fwtop.model.rule import Rule
from fwtop.ui.dialogs.dialog import ChoiceDialog, DetailsDialog
from fwtop.ui.dialogs.rule_dialog import Decision, RuleDialog
from fwtop.ui.dialogs.set_dialog import INSTALL_SET, SetDialog
from fwtop.ui.drawing.style import Line
from fwtop.ui.feed import Controls


class Dialogs(Protocol):
    """The dialogs that RuleActions opens."""

    async def ask(self, rule: Rule, conflict: Callable[[Rule], str]) -> Decision | None:
        """Preview a rule and let the operator edit it and decide; None: cancelled.

        `conflict` returns why a rule must not be installed, "" if it may.
        """
        ...

    async def ask_set(
        self, parts: Sequence[tuple[Rule, str]], conflict: Callable[[Rule], str]
    ) -> tuple[Rule, ...]:
        """Preview rules, each with its attack's letter, as one set; return those to install."""
        ...

    async def choose(self, title: str, question: str, answers: Sequence[str]) -> str | None:
        """Ask a question with a few answers; None: cancelled."""
        ...

    def show(self, title: str, lines: Sequence[Line]) -> None:
        """Show lines to read."""
        ...


class ScreenDialogs:
    """Opens dialogs over the screen in front."""

    def __init__(self, screen: Screen[None], controls: Controls, known: Callable[[], int]) -> None:
        self._screen = screen
        self._controls = controls
        self._known = known

    async def ask(self, rule: Rule, conflict: Callable[[Rule], str]) -> Decision | None:
        """Preview a rule and let the operator edit it and decide."""
        dialog = RuleDialog(rule, self._controls, conflict=conflict, known=self._known)
        return await self._screen.app.push_screen_wait(dialog)

    async def ask_set(
        self, parts: Sequence[tuple[Rule, str]], conflict: Callable[[Rule], str]
    ) -> tuple[Rule, ...]:
        """Preview rules as one set; return those to install."""
        dialog = SetDialog(parts, self._controls, conflict, self._known)
        answer = await self._screen.app.push_screen_wait(dialog)
        return dialog.rules if answer == INSTALL_SET else ()

    async def choose(self, title: str, question: str, answers: Sequence[str]) -> str | None:
        """Ask a question with a few answers."""
        return await self._screen.app.push_screen_wait(ChoiceDialog(title, question, answers))

    def show(self, title: str, lines: Sequence[Line]) -> None:
        """Show lines to read."""
        self._screen.app.push_screen(DetailsDialog(title, lines))
