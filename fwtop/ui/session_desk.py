"""What the keys about the session do: pause, export, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rich.style import Style

from fwtop.model.errors import FwtopError
from fwtop.model.snapshot import Snapshot
from fwtop.model.text import safe_text
from fwtop.ui.desk import Desk
from fwtop.ui.feed import Feed
from fwtop.ui.header import pending
from fwtop.ui.palette import BAD, GOOD, WARN

KEEP_AND_QUIT = "Keep and quit"
QUIT = "Quit"
_STAY = "Stay"


class SessionDesk:
    """Carries them out and says how it went; knows no widgets."""

    def __init__(
        self,
        feed: Feed,
        desk: Desk,
        *,
        choose: Callable[[str, str, Sequence[str]], Awaitable[str | None]],
        say: Callable[[str, Style], None],
        current: Callable[[], Snapshot | None],
        leave: Callable[[], None],
    ) -> None:
        self.paused = False
        self._feed = feed
        self._desk = desk
        self._choose = choose
        self._say = say
        self._current = current
        self._leave = leave

    def pause(self) -> None:
        """Stop or resume taking snapshots."""
        self.paused = not self.paused
        self._feed.pause(self.paused)
        if self.paused:
            self._say("paused: nothing new is shown until p; observing, rules and timers go on", WARN)
        else:
            self._say("resumed", GOOD)

    async def export(self) -> None:
        """Write a report, in the form that the operator chooses."""
        formats = self._feed.controls.export_formats
        chosen: str | None = formats[0]
        if len(formats) > 1:
            chosen = await self._choose("export", "Write a report of the session so far as", formats)
        if chosen is None:
            return
        try:
            path = await self._feed.controls.export(chosen)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
            return
        self._say(f"written to {safe_text(path)}", GOOD)

    def must_ask(self) -> bool:
        """Whether leaving takes rules back that could be kept."""
        snapshot = self._current()
        if snapshot is None or self._feed.controls.readonly or snapshot.guardian.startswith("lost"):
            return False
        return bool(pending(snapshot.mitigations))

    async def leave(self) -> None:
        """Leave; ask first if that takes rules back."""
        answer = await self._choose("quit", self._question(), (_STAY, KEEP_AND_QUIT, QUIT))
        snapshot = self._current()
        if answer == KEEP_AND_QUIT and snapshot is not None:
            await self._desk.confirm(snapshot)
            if self.must_ask():
                return  # the status line says why
        if answer in (KEEP_AND_QUIT, QUIT):
            self._leave()

    def _question(self) -> str:
        snapshot = self._current()
        count = len(pending(snapshot.mitigations)) if snapshot is not None else 0
        if count == 1:
            return "1 rule is not confirmed. Leaving takes it back, and the traffic that it stops returns."
        return f"{count} rules are not confirmed. Leaving takes them back; what they stop returns."
