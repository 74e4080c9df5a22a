"""What the parts of the screen share: the snapshot that is shown, the clock, and ways to tell and to ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rich.style import Style
from textual.screen import Screen

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.actions.dialog import ChoiceDialog, Details, DetailsDialog, Dialog, Dissect
from fwtop.ui.actions.log import REFUSED, SessionLog
from fwtop.ui.bars import StatusBars, StatusMessage
from fwtop.ui.feed import Feed
from fwtop.ui.layout import Begin
from fwtop.ui.lists.rows import Scope
from fwtop.ui.lists.rule_state import OptimisticOverlay
from fwtop.ui.style import BAD, TEXT

Answer = TypeVar("Answer")


class Desk:
    """Each part has one and the same desk; what only one part needs is that part's own."""

    def __init__(
        self, screen: Screen[None], feed: Feed, clock: Callable[[], float], *, begin: Begin, slow: bool
    ) -> None:
        self.screen = screen
        self.feed = feed
        self.controls = feed.controls
        self.clock = clock
        self.begin = begin
        self.slow = slow
        self.snapshot: Snapshot | None = None
        self.bars = StatusBars(StatusMessage(clock))
        self.log = SessionLog()
        self.scope = Scope()
        self.overlay = OptimisticOverlay()
        self.redraw: Callable[[], None] = lambda: None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal."""
        return self.screen.app.size

    def now(self) -> float:
        """Return the time that ages and countdowns refer to; a recording has its own."""
        if self.snapshot is not None and self.snapshot.origin.kind != "live":
            return self.snapshot.started + self.snapshot.seconds
        return self.clock()

    def current(self) -> Snapshot | None:
        """Return the snapshot with the guardian's newest answers."""
        return self.overlay.over(self.snapshot, self.clock()) if self.snapshot is not None else None

    def known_clients(self) -> int:
        """Return how many client-like packets harm is measured on."""
        return self.snapshot.judgement.baseline_packets if self.snapshot is not None else 0

    def say(self, text: str, style: Style = TEXT) -> None:
        """Show a message for some seconds; what was refused or failed is worth a line of the log, too."""
        if style is BAD:
            self.log.note(REFUSED, text, self.now())
        self.bars.message.say(text, style)
        self.redraw()

    def say_if_empty(self) -> None:
        """Say why a key seems to do nothing before the first snapshot."""
        if self.snapshot is None:
            self.say("nothing has been observed yet")

    async def attempt(self, request: Awaitable[Answer]) -> Answer | None:
        """Await a request's answer; None if it fails, as the status line says."""
        try:
            return await request
        except FwtopError as error:
            self.say(safe_text(error), BAD)
            return None

    async def ask(self, dialog: Dialog[Answer]) -> Answer | None:
        """Open a dialog and await its answer."""
        return await self.screen.app.push_screen_wait(dialog)

    async def choose(self, title: str, question: str, answers: Sequence[str]) -> str | None:
        """Ask a question with a few answers; None: cancelled."""
        return await self.ask(ChoiceDialog(title, question, answers))

    def show(self, title: str, lines: Details, dissect: Dissect | None = None) -> None:
        """Show lines to read, and below them a packet once it is decoded."""
        self.screen.app.push_screen(DetailsDialog(title, lines, dissect))
