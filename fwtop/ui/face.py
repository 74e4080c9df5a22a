"""The lines around the panels, and the news of the moment: header, banner, status, footer, notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.style import Style

from fwtop.model.snapshot import Snapshot
from fwtop.ui import header
from fwtop.ui.cells import Line
from fwtop.ui.layout import MINIMUM, Box
from fwtop.ui.palette import TEXT, WARN
from fwtop.ui.widgets import Lines

_MESSAGE_SECONDS = 8.0


@dataclass(slots=True)
class Message:
    """What was said last, and until when it is worth a line; all screens show the same."""

    clock: Callable[[], float]
    line: Line = field(default_factory=list)
    until: float = 0.0

    def say(self, text: str, style: Style = TEXT) -> None:
        """Replace what was said."""
        self.line = [(f" {text}", style)]
        self.until = self.clock() + _MESSAGE_SECONDS

    def current(self) -> Line:
        """Return the news while it is news."""
        return self.line if self.clock() < self.until else []


class Face:
    """Owns the widgets of lines and writes them; knows no keys and no panels."""

    NAMES = ("header", "banner", "status", "footer", "notice")

    def __init__(
        self, message: Message, history: header.History | None = None, *, on_rules: bool = False
    ) -> None:
        self.message = message
        self.history = header.History() if history is None else history
        self._on_rules = on_rules
        self._lines = {name: Lines(name) for name in self.NAMES}

    def __iter__(self) -> Iterator[Lines]:
        """Yield the widgets, for the screen to hold."""
        yield from self._lines.values()

    def place(self, boxes: dict[str, Box]) -> None:
        """Give the lines their boxes; those without one hide."""
        for name, widget in self._lines.items():
            widget.place(boxes.get(name))

    def apologise(self, width: int, height: int) -> None:
        """Say that the terminal is too small, over all of it."""
        self._lines["notice"].place(Box(0, 0, width, height))
        self._lines["notice"].show(_too_small(width, height))

    def draw(self, snapshot: Snapshot | None, mood: header.Mood, *, keys: bool) -> None:
        """Write all lines; `keys` says whether the footer's keys are those that count now."""
        status = self._lines["status"]
        if not status.display:
            return
        width = status.box.width
        waiting = bool(snapshot and header.pending(snapshot.mitigations))
        status.show([header.status_line(snapshot, self.message.current(), mood.now, width)])
        footer = header.footer_line(width, waiting=waiting, rules=self._on_rules) if keys else []
        self._lines["footer"].show([footer])
        if snapshot is None:
            return
        self._lines["header"].show(header.header_lines(snapshot, self.history, mood, width))
        banner = self._lines["banner"]
        banner.show(header.banner_lines(snapshot, mood.now, width, banner.box.height))


def _too_small(width: int, height: int) -> list[Line]:
    text = f"fwtop needs {MINIMUM[0]}×{MINIMUM[1]}; this is {width}×{height}"[:width]
    line: Line = [(" " * ((width - len(text)) // 2) + text, WARN)]
    return [*([[]] * ((height - 1) // 2)), line]
