"""What is sent to the terminal: cells that it doesn't show yet, and lists only as a slow link takes them.

Textual repaints a changed part of a line from the line's left edge, and all of a widget that was moved or
shown: a change of tab is the whole screen twice, most of it blank before and after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.strip import Strip

from fwtop.ui.style import Cell, cells_of, differing

_MANY = 1_000  # cells from which an update is compared with what is shown: widgets compare their own lines


class ShownCells:
    """What the terminal shows, as far as it is known; lines and columns from 0."""

    def __init__(self) -> None:
        self._lines: dict[int, list[Cell | None]] = {}

    def forget(self) -> None:
        """Take nothing for known: the terminal was cleared, or others wrote on it."""
        self._lines = {}

    def note(self, update: LayoutUpdate) -> None:
        """Remember a whole screen that is about to be sent."""
        self._lines = {}
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                self.replace(x, y, strip)
                x += strip.cell_length

    def replace(self, x: int, y: int, strip: Strip) -> tuple[list[Cell | None], list[Cell | None]]:
        """Remember a strip that is about to be sent; return the cells before and after."""
        after: list[Cell | None] = [*cells_of(strip)]
        if len(after) != strip.cell_length:  # a wide character: cells and characters don't match
            after = [None] * strip.cell_length
        line = self._lines.setdefault(y, [])
        line += [None] * (x + len(after) - len(line))
        before = line[x : x + len(after)]
        line[x : x + len(after)] = after
        return before, after

    def lose(self, x: int, y: int, cells: int) -> None:
        """Take some cells of a line for unknown."""
        line = self._lines.get(y, [])
        line[x : x + cells] = [None] * len(line[x : x + cells])


class ExactUpdate(ChopsUpdate):
    """Renders the spans that changed, cut at both ends, without cells that are shown already."""

    shown: ShownCells

    @classmethod
    def of(cls, update: ChopsUpdate, shown: ShownCells) -> ExactUpdate:
        """Take over an update of Textual's compositor."""
        exact = cls(update.chops, update.spans, update.chop_ends)
        exact.shown = shown
        return exact

    def render_segments(self, console: Console) -> str:
        """Return the cursor movements and texts."""
        sequences: list[str] = []
        for x, y, strip in self._new_parts():
            sequences.append(Control.move_to(x, y).segment.text)
            sequences.append(strip.render(console))
        return "".join(sequences)

    def _new_parts(self) -> Iterator[tuple[int, int, Strip]]:
        many = sum(right - left for _, left, right in self.spans) >= _MANY
        for x, y, strip in self._parts():
            if not many:
                self.shown.lose(x, y, strip.cell_length)
                yield x, y, strip
                continue
            for first, last in differing(*self.shown.replace(x, y, strip)):
                yield x + first, y, strip.crop(first, last)

    def _parts(self) -> Iterator[tuple[int, int, Strip]]:
        for y, left, right in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                first, last = max(x, left), min(end, right)
                if strip is not None and first < last:
                    yield first, y, strip.crop(first - x, last - x)


_SECONDS = 10.0
_BYTES = 26_000  # in those; bars and status lines may add 4 KB to it: 3 KiB a second in all
_CELL_BYTES = 1.3  # of a list in which every row has changed, colours and moves of the cursor included
_LIST_BYTES = 13_000  # at most, or a terminal that is larger than 200×50 would never get one


class LinkBudget:
    """Remembers how much was sent, and when; times are in seconds, of any clock."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int]] = deque()

    def note(self, now: float, sent: int) -> None:
        """Take down the bytes that were sent so far."""
        if self._noted and now < self._noted[-1][0]:
            self._noted.clear()  # the clock was set back
        self._noted.append((now, sent))
        while len(self._noted) > 1 and self._noted[1][0] <= now - _SECONDS:
            self._noted.popleft()

    def has_room(self, cells: int) -> bool:
        """Return whether what fills so many cells may be sent now, as of the last note."""
        if not self._noted:
            return True
        used = self._noted[-1][1] - self._noted[0][1]
        return used + min(cells * _CELL_BYTES, _LIST_BYTES) <= _BYTES
