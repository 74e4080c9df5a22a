"""Which rows a panel shows, in which order, and which one is selected; no drawing, no Textual.

The operator acts on rows while they move. So the selection belongs to a key, not to a line; for a
moment after a key press the rows keep their order; and a selected row that drops out of the list
stays, marked as gone, until the selection leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fwtop.ui.items import Item

HOLD_SECONDS = 3.0


@dataclass(slots=True)
class Ordering:
    """How to identify, search and sort the items of a list."""

    key: Callable[[Any], str]
    search: Callable[[Any], str]
    sorts: tuple[tuple[str, Callable[[Any], Any]], ...] = ()  # name, value; greatest first


@dataclass(slots=True)
class RowList:
    """The rows of one view of one panel."""

    ordering: Ordering
    items: list[Item] = field(default_factory=list)
    selected: int = 0
    gone: bool = False  # the selected item is no longer in the list
    followed: bool = True  # until the first move the selection stays on the first row
    sort: int = -1  # index of `sorts`; -1: as the list came
    filter: str = ""
    hidden: int = 0  # rows that the filter hides
    held_until: float = 0.0

    def update(self, items: Sequence[Item], now: float) -> None:
        """Take the next list over; the selected key stays selected."""
        chosen = self.current()
        shown = [item for item in items if self._matches(item)]
        self.hidden = len(items) - len(shown)
        if self.sort >= 0:
            shown.sort(key=self.ordering.sorts[self.sort][1], reverse=True)
        if now < self.held_until:
            shown = self._in_present_order(shown)
        self.gone = False
        if chosen is not None and not self.followed:
            self._keep_selected(shown, chosen)
        self.items = shown
        self.selected = 0 if self.followed else max(min(self.selected, len(shown) - 1), 0)

    def current(self) -> Item | None:
        """Return the selected item."""
        return self.items[self.selected] if self.selected < len(self.items) else None

    def select(self, index: int, now: float) -> None:
        """Move the selection to a line and keep the rows still for a moment."""
        if not self.items:
            return
        self.selected = max(min(index, len(self.items) - 1), 0)
        self.followed = False
        self.hold(now)

    def follow(self) -> None:
        """Go back to the first row and stay with whatever comes first."""
        self.selected = 0
        self.followed = True
        self.held_until = 0.0

    def hold(self, now: float) -> None:
        """Keep the present order for a moment: a key is being pressed."""
        self.held_until = now + HOLD_SECONDS

    def next_sort(self) -> str:
        """Change to the next order and return its name."""
        self.sort = self.sort + 1 if self.sort + 1 < len(self.ordering.sorts) else -1
        self.held_until = 0.0
        return self.sort_name

    @property
    def sort_name(self) -> str:
        """Name of the present order; empty for the list's own."""
        return self.ordering.sorts[self.sort][0] if self.sort >= 0 else ""

    def _matches(self, item: Item) -> bool:
        return not self.filter or self.filter.lower() in self.ordering.search(item).lower()

    def _in_present_order(self, shown: list[Item]) -> list[Item]:
        place = {self.ordering.key(item): line for line, item in enumerate(self.items)}
        return sorted(shown, key=lambda item: place.get(self.ordering.key(item), len(place)))

    def _keep_selected(self, shown: list[Item], chosen: Item) -> None:
        wanted = self.ordering.key(chosen)
        for line, item in enumerate(shown):
            if self.ordering.key(item) == wanted:
                self.selected = line
                return
        if self._matches(chosen):
            self.selected = min(self.selected, len(shown))
            shown.insert(self.selected, chosen)
            self.gone = True
