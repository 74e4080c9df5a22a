"""What lists show: their items, in which order, and which of them is selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from rich.style import Style

from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.snapshot import (
    Attack,
    Destination,
    LedgerRow,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    Source,
)
from fwtop.render.rows.field import RowType
from fwtop.ui.drawing.style import Line
from fwtop.ui.state.history import TrendItem
from fwtop.ui.state.packets import PacketRow
from fwtop.ui.state.path import Figure, Stage
from fwtop.ui.state.rules import Row


class LogEntry(Struct, frozen=True):
    """A line of the log."""

    number: int  # in order
    at: float  # Unix seconds
    kind: str
    words: str  # the kind for people
    subject: str  # an attack's kind, a rule's id or a proposal's command; "" for none
    text: str
    style: Style
    count: int = 1
    details: tuple[Line, ...] = ()


Estimate = Source | Destination | Port | Payload | PacketSignature  # what has a share
Item = (
    Estimate
    | LedgerRow
    | Figure
    | RuleStatus
    | Proposal
    | Attack
    | Stage
    | LogEntry
    | PacketRow
    | Row
    | TrendItem
)
FREEZE_SECONDS = 3.0  # a key holds the order this long
RESORT_SECONDS = 3.0  # rows change their order at most this often
SEEN_SECONDS = 0.5  # what came under the cursor more recently has not been seen


class RowList(Struct):
    """The rows of one view of one panel, their order, and the selected one.

    The operator acts on rows while they move. So the selection belongs to a key, not to a line; rows
    change places at most every RESORT_SECONDS, and not for FREEZE_SECONDS after a key press; and a
    selected row that drops out of the list stays, marked as gone, until the selection leaves it.
    """

    row: RowType
    newest_last: bool = False  # the cursor follows the end
    group: Callable[[Any], str] | None = None  # heading of a group that stands below the others
    items: Sequence[Item] = ()
    selected: int = 0
    gone: bool = False  # the selected item is no longer in the list
    followed: bool = True  # until the first key the cursor stays on the first row
    sort: int = -1  # index of `sorts`; -1: as the list came
    filter: str = ""
    grouped: bool = False  # below their headings
    hidden: int = 0  # rows that the filter hides
    frozen_until: float = 0.0
    sorted_at: float = float("-inf")
    _before: tuple[Item, float] | None = None  # what a following cursor left, and when

    def update(self, items: Sequence[Item], now: float) -> None:
        """Show the next list; the selected key stays selected."""
        chosen = self.current()
        shown = [item for item in items if self._matches(item)]
        self.hidden = len(items) - len(shown)
        if self.sort >= 0:
            shown.sort(key=self.row.sorts[self.sort][1], reverse=True)
        if 0 < self.frozen_until - now <= FREEZE_SECONDS or 0 <= now - self.sorted_at < RESORT_SECONDS:
            shown = self._in_frozen_order(shown)
        else:
            self.sorted_at = now
        self._regroup(shown)
        self.gone = False
        if chosen is not None and not self.followed:
            self._keep_selected(shown, chosen)
        self.items = shown
        last = max(len(shown) - 1, 0)
        followed = last if self.newest_last else 0
        self.selected = followed if self.followed else max(min(self.selected, last), 0)
        key = self.row.key
        if chosen is not None and self.followed and shown and key(shown[followed]) != key(chosen):
            self._before = chosen, now

    def clear(self) -> None:
        """Have no rows until the next update."""
        self.items, self.selected, self.gone, self._before = (), 0, False, None

    def current(self) -> Item | None:
        """Return the selected item."""
        return self.items[self.selected] if self.selected < len(self.items) else None

    def latest(self, item: Item) -> Item:
        """Return the present figures of an item, or the item itself if it is no longer listed."""
        wanted = self.row.key(item)
        return next((shown for shown in self.items if self.row.key(shown) == wanted), item)

    def target(self, now: float) -> Item | None:
        """Return the item that an action applies to, and select it for good.

        It is the item that was seen when the key was pressed: a following cursor that changed rows a
        moment ago still means the row before.
        """
        if self.followed and self._before is not None and 0 <= now - self._before[1] < SEEN_SECONDS:
            shown = list(self.items)
            self._keep_selected(shown, self._before[0])
            self.items = shown
        self.pin(now)
        return self.current()

    def select(self, index: int, now: float) -> None:
        """Move the selection to a line and hold the order."""
        if not self.items:
            return
        last = len(self.items) - 1
        self.selected = max(min(index, last), 0)
        self.pin(now)
        self.followed = self.newest_last and self.selected == last

    def pin(self, now: float) -> None:
        """Keep the selected item selected, and hold the order for FREEZE_SECONDS."""
        self.followed = False
        self._before = None
        self.freeze(now)

    def follow(self) -> None:
        """Return to the first row and stay with whichever is first, unless the list grows at its end."""
        self.selected = 0
        self.followed = not self.newest_last
        self._sort_next()

    def freeze(self, now: float) -> None:
        """Hold the present order for FREEZE_SECONDS."""
        self.frozen_until = now + FREEZE_SECONDS

    def _sort_next(self) -> None:
        self.frozen_until, self.sorted_at = 0.0, float("-inf")

    def next_sort(self) -> str:
        """Change to the next order and return its name."""
        self.sort = self.sort + 1 if self.sort + 1 < len(self.row.sorts) else -1
        self._sort_next()
        return self.sort_name

    def sort_by(self, name: str) -> None:
        """Change to an order by its name; any other than the list's is its own."""
        names = [known for known, _ in self.row.sorts]
        self.sort = names.index(name) if name in names else -1
        self._sort_next()

    @property
    def sort_name(self) -> str:
        """Name of the present order; "" for the list's own."""
        return self.row.sorts[self.sort][0] if self.sort >= 0 else ""

    def _matches(self, item: Item) -> bool:
        return not self.filter or self.filter.lower() in self.row.search(item).lower()

    def _in_frozen_order(self, shown: list[Item]) -> list[Item]:
        place = {self.row.key(item): line for line, item in enumerate(self.items)}
        return sorted(shown, key=lambda item: place.get(self.row.key(item), len(place)))

    def _keep_selected(self, shown: list[Item], chosen: Item) -> None:
        wanted = self.row.key(chosen)
        for line, item in enumerate(shown):
            if self.row.key(item) == wanted:
                self.selected = line
                return
        if self._matches(chosen):
            self.selected = min(self.selected, len(shown))
            shown.insert(self.selected, chosen)
            self._regroup(shown)
            self.selected = shown.index(chosen)
            self.gone = True

    def _regroup(self, shown: list[Item]) -> None:
        shown.sort(key=lambda item: bool(self.heading(item)))

    def heading(self, item: Item) -> str:
        """Return the heading of an item's group; "" if it has none."""
        return self.group(item) if self.group is not None and self.grouped else ""
