"""The list of packets: follows the newest, or is held where the cursor stands."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from fwtop.analysis.packets.recent import PacketList
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.format import number
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.packet_rows import PACKET, PacketBook, PacketRow
from fwtop.ui.lists.packets import packet_view
from fwtop.ui.lists.panel import Panel
from fwtop.ui.lists.panels import PanelSpec
from fwtop.ui.lists.rows import SEEN_SECONDS, Item, RowList
from fwtop.ui.lists.table import CellContext, View
from fwtop.ui.style import ACCENT, BAD, DIM, WARN, Line, beside

PACKETS = PanelSpec("packets", "Packets", (packet_view(0, (), judged=True),), lambda *_: ())


def _number(item: Item) -> int:
    return item.number if isinstance(item, PacketRow) else 0


class PacketRowList(RowList):
    """Packets in order of arrival. Following means: the cursor is on the newest, the last one."""

    def update(self, items: Sequence[Item], now: float) -> None:
        """Show these packets; the selected one, or the one that came next, stays selected."""
        chosen = self.current()
        self.items = items
        last = max(len(self.items) - 1, 0)
        if self.followed or not isinstance(chosen, PacketRow):
            self.selected = last
            if chosen is not None and chosen != self.current():
                self._before = chosen, now
            return
        self.selected = min(bisect_left(items, chosen.number, key=_number), last)

    def target(self, now: float) -> Item | None:
        """Return the packet that was seen when the key was pressed, and stop following."""
        before = self._before
        if self.followed and before is not None and 0 <= now - before[1] < SEEN_SECONDS:
            self.pin(now)
            return before[0]
        self.pin(now)
        return self.current()

    def follow(self) -> None:
        """Return to the newest packet and stay with it."""
        self.followed = True
        self.selected = max(len(self.items) - 1, 0)


class PacketPanel(Panel):
    """Shows the packets of a PacketBook."""

    def __init__(self) -> None:
        super().__init__(PACKETS)
        self.book = PacketBook()
        self.lists: list[RowList] = [PacketRowList(PACKET)]
        self.live = True
        self.drawn: Callable[[], None] = lambda: None  # called after each drawing

    @property
    def view(self) -> View:
        """The columns for the packets that are visible."""
        room = max(self.box.width - 2, 0)
        top = max(min(self._top, self.rows.selected), self.rows.selected - self.box.height)
        visible = self.rows.items[top : top + max(self.box.height, 1)]
        packets = [item for item in visible if isinstance(item, PacketRow)]
        newest = self.book.newest
        return packet_view(room, packets, judged=newest is None or newest.judged)

    def take(self, snapshot: Snapshot, context: CellContext) -> None:
        """Draw again if the scope has changed; a live list is drawn when its packets have come."""
        self._snapshot = snapshot
        self._cell_context = context
        self.live = snapshot.origin.kind == "live"
        attack = context.scope.attack(snapshot)
        before = self.book.scope
        self.book.set_scope(attack.target if attack is not None else "")
        if self.blank or self.book.scope != before or self.book.held or not self.live:
            self._update()

    def offer(self, newest: PacketList | None) -> None:
        """Show the newest packets, unless the list is held."""
        if self.live and not self.rows.followed:
            self.book.hold(True)  # a key was about the selected packet
        self.book.offer(newest)
        self._update()

    def hold(self, held: bool) -> None:
        """Hold the list, or follow the newest packets again."""
        self.book.hold(held)
        if held:
            self.rows.pin(self._cell_context.now)
        else:
            self.rows.follow()
        self._update()

    @property
    def filter_text(self) -> str:
        """The filter as it was typed."""
        return self.book.text

    def set_filter(self, text: str) -> None:
        """Filter while typing; what is wrong stands in the title."""
        self.book.set_filter(text)
        self._update()

    def move(self, delta: int, now: float) -> None:
        """Select another packet; that holds a live list, once there is one."""
        if not self.rows.items:
            return
        if self.live:
            self.book.hold(True)
        super().move(delta, now)

    def follow(self) -> None:
        """Select the oldest packet; that holds a live list."""
        self.move(-len(self.rows.items), self._cell_context.now)

    def selected_packet(self) -> PacketRow | None:
        """Return the selected packet."""
        item = self.current()
        return item if isinstance(item, PacketRow) else None

    def to_alike(self, delta: int) -> tuple[int, int] | None:
        """Select the next packet like the selected one; returns its place among them and their number.

        The place is 0 if there is no further one in that direction; None if nothing is selected.
        """
        item = self.selected_packet()
        if item is None:
            return None
        found = self.book.alike(item).nonzero()[0].tolist()
        here = bisect_left(found, self.rows.selected)
        if not 0 <= here + delta < len(found):
            return 0, len(found)
        self.move(found[here + delta] - self.rows.selected, self._cell_context.now)
        return here + delta + 1, len(found)

    def draw(self) -> None:
        """Compose the lines again."""
        super().draw()
        self.drawn()

    def _update(self) -> None:
        self.rows.update(self.book.rows, self._cell_context.now)
        self.draw()

    def _empty_text(self) -> str:
        newest = self.book.newest
        if self._snapshot is not None and self._snapshot.origin.kind == "session":
            return "a stored session keeps no packets"
        if newest is None or not len(newest):
            return super()._empty_text()
        return f"none of {number(len(newest))} packets fits the filter and the scope"

    def _details(self, room: int) -> Line:
        """Write what is wrong with the filter, else filter, scope and how many packets there are."""
        book, newest = self.book, self.book.newest
        if book.error is not None:
            return [(f"filter {book.error}", BAD)]
        parts: list[Line] = []
        if self.live and newest is not None:
            word, style = ("HELD", WARN) if book.held else ("live", DIM)
            key, does = KEY_MAP.label("hold"), "live" if book.held else "hold"
            keys: Line = [(f" {key} ", ACCENT), (does, DIM)] if self.active else []  # on its own tab only
            parts.append([(word, style), *keys])
        if book.text.strip():
            parts.append([("/", ACCENT), (book.text.strip(), WARN)])
        if book.scope:
            parts.append([("scope ", DIM), (book.scope, WARN)])
        if newest is not None:
            parts.append([(f"{number(len(book.rows))} of {number(len(newest))}", DIM)])
            seen = number(newest.seen)
            if newest.seen > len(newest):
                parts.append([(f"{seen} sampled" if self.live else f"the first of {seen}", DIM)])
        return beside(parts, room)
