"""Widgets that survive their faults, the one that shows lines, and the frame around a tab.

Header, graph, tab bar, status and footer are the same on every tab; tabs.py fills the room between them.
Below the minimum there is only a message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from msgspec import Struct
from rich.style import Style
from textual._callback import invoke
from textual.dom import DOMNode
from textual.geometry import Region
from textual.message import Message
from textual.message_pump import MessagePump
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker

from fwtop.ui.style import BAD, Line, changed_cells, strip_of

Begin = Callable[..., object]  # Guarded.begin


class Guarded(MessagePump):
    """Survives what its handlers raise, where Textual ends the widget's message loop and the program."""

    @property
    def _survivor(self) -> Any:  # noqa: ANN401 - FwtopApp, which stands above
        return self.app

    def survive(self, error: Exception) -> str:
        """Have the application write a crash log and tell of an error; return the line that it shows."""
        return str(self._survivor.survive(error))

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Go on after what fails inside."""
        try:
            yield
        except Exception as error:
            self.survive(error)

    @contextmanager
    def drawing(self, what: str) -> Iterator[None]:
        """Go on after a drawing that fails, unless it failed the last time, too."""
        try:
            yield
        except Exception as error:
            self._survivor.drawing_failed(what, error)
        else:
            self._survivor.drawn(what)

    def begin(
        self, work: Callable[..., Awaitable[object]], *given: object, group: str, exclusive: bool = False
    ) -> Worker[None]:
        """Run a function beside everything else, in place of what still runs in an `exclusive` group.

        A coroutine made here would never be awaited if the program ended before its turn.
        """

        async def run() -> None:
            await work(*given)

        return cast(DOMNode, self).run_worker(run, group=group, exclusive=exclusive)

    async def _dispatch_message(self, message: Message) -> None:
        with self.surviving():
            await super()._dispatch_message(message)

    async def _flush_next_callbacks(self) -> None:
        callbacks = self._next_callbacks.copy()
        self._next_callbacks.clear()
        for callback in callbacks:
            with self.surviving(), self.prevent(*callback._prevent):
                await invoke(callback.callback)


MINIMUM = (60, 15)
WIDE = (132, 34)  # from this size on the overview has two columns
GRAPH_ON_ALL_TABS = 40  # rows
MOST_GRAPH = 10  # lines
LEFT_COLUMN = 57  # percent
HEADER_ROWS = 3


class Box(Struct, frozen=True):
    """A rectangle in cells."""

    x: int
    y: int
    width: int
    height: int


def columns(room: Box, share: int) -> tuple[Box, Box]:
    """Divide a room into two columns; the left one gets `share` percent."""
    left = (room.width - 3) * share // 100
    return (
        Box(room.x, room.y, left, room.height),
        Box(room.x + left + 3, room.y, room.width - left - 3, room.height),
    )


def graph_height(height: int) -> int:
    """Return the lines that the history graph has at least in a terminal of that height; 0: none."""
    if height < 20:
        return 0
    most = 7 if height < GRAPH_ON_ALL_TABS else 8 + (height - GRAPH_ON_ALL_TABS) // 5
    return min(5 + max(height - 24, 0) // 3, most, MOST_GRAPH)


class Frame(Struct, frozen=True):
    """What surrounds a tab, and the room that it leaves."""

    boxes: dict[str, Box]
    room: Box


def frame(
    width: int, height: int, tab: str, *, slow: bool = False, recorded: bool = False, more: int = 0
) -> Frame | None:
    """Place header, graph, tab bar, status and footer; None if the terminal is too small.

    A recording has its time bar above the status. The graph is `more` lines higher than it has to be.
    """
    if width < MINIMUM[0] or height < MINIMUM[1]:
        return None
    graph = 0 if slow or (tab != "overview" and height < GRAPH_ON_ALL_TABS) else graph_height(height) + more
    boxes = {
        "header": Box(0, 0, width, HEADER_ROWS),
        "status": Box(0, height - 2, width, 1),
        "footer": Box(0, height - 1, width, 1),
    }
    if graph and tab == "overview" and width >= WIDE[0] and height >= WIDE[1]:
        graph = MOST_GRAPH
        boxes["graph"], boxes["funnel"] = columns(Box(0, HEADER_ROWS, width, graph), LEFT_COLUMN)
    elif graph:
        boxes["graph"] = Box(0, HEADER_ROWS, width, graph)
    if recorded:
        boxes["timebar"] = Box(0, height - 3, width, 1)
    boxes["tabs"] = Box(0, HEADER_ROWS + graph, width, 1)
    top = 4 + graph
    return Frame(boxes, Box(0, top, width, height - top - 2 - recorded))


class Clicked(Message):
    """Something in a widget was clicked that stands for a value: a key, a tab, a row, a time."""

    def __init__(self, widget: Lines, value: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.widget = widget
        self.value = value


class Lines(Guarded, Widget):
    """A widget that shows lines composed by its owner."""

    DEFAULT_CSS = "Lines { position: absolute; width: 1; height: 1; }"

    def __init__(self, name: str) -> None:
        super().__init__(name=name, id=name)
        self._strips: list[Strip] = []
        self._content: tuple[Sequence[Line], dict[int, Style] | None] = (), None
        self.box = Box(0, 0, 0, 0)

    def place(self, box: Box | None) -> None:
        """Move to a box, or hide."""
        self.display = box is not None
        if box is not None and box != self.box:
            self.box = box
            self.styles.offset = (box.x, box.y)
            self.styles.width = box.width
            self.styles.height = box.height
            self._strips = []

    @property
    def blank(self) -> bool:
        """Whether nothing was drawn since its place changed."""
        return not self._strips

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Compose the lines; if that fails, empty the widget and go on."""
        try:
            yield
        except Exception as error:
            self.survive(error)
            self.empty()

    def empty(self) -> None:
        """Show only that the lines could not be composed."""
        self.show([[(" not drawn: internal error, see the Log tab", BAD)]])

    def repaint(self) -> None:
        """Draw every line anew: the colours have changed."""
        self._strips = []
        self.show(*self._content)

    def show(self, lines: Sequence[Line], over: dict[int, Style] | None = None) -> None:
        """Show these lines, each cut to the width; `over` styles whole lines."""
        was, were_over = self._content
        self._content = lines, over
        width, height = self.box.width, self.box.height
        old, whole, whole_before = self._strips, over or {}, were_over or {}
        known = min(len(was), len(old), height)
        strips: list[Strip] = []
        changed: list[Region] = []
        for y, line in enumerate(lines[:height]):
            style = whole.get(y)
            if y < known and line == was[y] and style == whole_before.get(y):  # most lines stay
                strips.append(old[y])
                continue
            strips.append(strip_of(line, width, over=style))
            if y < len(old):
                changed += _changed(y, old[y], strips[y])
        for y in range(len(strips), height):
            strips.append(Strip.blank(width))
            if y < len(old):
                changed += _changed(y, old[y], strips[y])
        self._strips = strips
        if len(old) != len(strips):
            self.refresh()
        elif changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Return a finished line."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)


def _changed(y: int, before: Strip, after: Strip) -> list[Region]:
    return [Region(start, y, end - start, 1) for start, end in changed_cells(before, after)]
