"""The command line: what is typed, what it may become, and the last error."""

# Textual's CommandPalette has no Tab completion, no history, and no errors: a query there just finds nothing.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType

from fwtop.model.text import safe_text
from fwtop.ui.actions.commands import (
    MAX_LENGTH,
    Call,
    Command,
    CommandError,
    Completion,
    History,
    complete,
    parse,
)
from fwtop.ui.dialogs.dialog import Dialog, bound, hints
from fwtop.ui.drawing.style import ACCENT, BAD, DIM, SELECTED, STRONG, TEXT, TITLE, Line

_NAME = 16  # cells of a completion's word


class CommandDialog(Dialog[Call | None], inherit_bindings=False):
    """Reads a command; `known` is asked again for every line, because rules and sources change."""

    WIDTH = 84
    BINDINGS: ClassVar[list[BindingType]] = bound("""
        tab complete(1)   shift+tab complete(-1)   up walk(-1)   down walk(1)   pageup scroll(-8)
        pagedown scroll(8)   enter run   ctrl+u clear   ctrl+w erase_word   escape,ctrl+c close
    """)

    def __init__(self, known: Callable[[], Sequence[Command]], history: History) -> None:
        super().__init__("command")
        self.line = ""
        self.error = ""
        self._known = known
        self._history = history
        self._found: list[Completion] = []
        self._marked = -1  # the completion that Tab has put into the line
        history.start()
        self._search()

    def _search(self) -> None:
        self._marked, self._top = -1, 0
        self._found = complete(self.line, self._known())

    def _type(self, line: str) -> None:
        self.line, self.error = line[:MAX_LENGTH], ""
        self._search()
        self.draw()

    # -- keys

    def on_key(self, event: events.Key) -> None:
        """Collect what is typed."""
        if event.key == "backspace":
            self._type(self.line[:-1])
        elif event.character and event.character.isprintable():
            self._type(self.line + safe_text(event.character))
        else:
            return
        event.stop()

    def on_paste(self, event: events.Paste) -> None:
        """Take the first line of what is pasted."""
        event.stop()
        self._type(self.line + safe_text(event.text.strip().partition("\n")[0], limit=MAX_LENGTH))

    def action_clear(self) -> None:
        """Empty the line."""
        self._type("")

    def action_erase_word(self) -> None:
        """Delete the last word."""
        self._type(self.line.rstrip().rpartition(" ")[0])

    def action_walk(self, delta: int) -> None:
        """Go through the lines entered before."""
        self._type(self._history.walk(delta, self.line))

    def action_complete(self, delta: int) -> None:
        """Complete the line; pressed again, take the next completion."""
        if not self._found:
            return
        self._marked = (self._marked + delta) % len(self._found) if self._marked >= 0 or delta > 0 else -1
        self.line, self.error = self._found[self._marked].line, ""
        if len(self._found) == 1:
            self._search()
        self.draw()

    def action_run(self) -> None:
        """Run the line, or say what is wrong with it."""
        if not self.line.strip():
            self.dismiss(None)
            return
        try:
            call = parse(self.line, self._known())
        except CommandError as error:
            self.error = safe_text(error, limit=300)
            self.draw()
            return
        self._history.add(self.line.strip())
        self.dismiss(call)

    # -- drawing

    def draw(self) -> None:
        """Keep the marked completion in sight."""
        if self._marked >= 0 and self.readable:
            body, foot = self._parts()
            room = max(min(len(body), self.app.size[1] - 3 - len(foot)), 1)
            self._top = min(max(self._top, self._marked - room + 1), self._marked)
        super().draw()

    def body(self, width: int) -> list[Line]:
        """List what the line may become."""
        name = max([_NAME, *(len(_named(item)) for item in self._found)])
        lines = [self._row(item, min(name, width // 2), place) for place, item in enumerate(self._found)]
        return lines or [[("no completion", DIM)]]

    def _row(self, item: Completion, name: int, place: int) -> Line:
        shown = item.shown
        if place == self._marked:
            return [("▸ ", ACCENT), (_named(item).ljust(name), SELECTED), (f" {shown.help}", TEXT)]
        hint = shown.hint.ljust(max(name - len(shown.word), 1))
        line: Line = [("  ", TEXT), (f"{shown.word} ", STRONG), (hint, DIM)]
        return [*line, (f"{shown.key:<7}", TITLE), (shown.help, DIM)]

    def foot(self, width: int, room: int) -> list[Line]:  # noqa: ARG002
        """Write the line, and below it the error or the keys."""
        typed = self.line if len(self.line) < width - 3 else "…" + self.line[-(width - 5) :]
        line: Line = [(":", TITLE), (typed, TEXT), ("▏", ACCENT)]
        keys = hints("Tab completes", "↑ earlier ones", "Enter runs it", "Esc closes")
        return [line, [(self.error, BAD)] if self.error else keys]


def _named(item: Completion) -> str:
    """Return a completion's word with a hint of what may follow."""
    return f"{item.shown.word} {item.shown.hint}".rstrip()
