"""The Packets tab: a list that follows the newest or is held where the cursor stands, its pane, its keys."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from fwtop.analysis.packets.recent import PacketList
from fwtop.dissect.client import Dissection
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.ui.actions.desk import Desk
from fwtop.ui.format import number
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.layout import Lines
from fwtop.ui.lists.packet_rows import PACKET, PacketBook, PacketRow
from fwtop.ui.lists.packets import packet_view, pane_lines
from fwtop.ui.lists.panel import Panel
from fwtop.ui.lists.panels import PanelSpec
from fwtop.ui.lists.rows import SEEN_SECONDS, RowList
from fwtop.ui.lists.table import CellContext, View
from fwtop.ui.style import ACCENT, BAD, DIM, TEXT, WARN, Line, beside

PACKETS = PanelSpec("packets", "Packets", (packet_view(0, (), judged=True),), lambda *_: ())


def _number(item: Struct) -> int:
    return item.number if isinstance(item, PacketRow) else 0


class PacketRowList(RowList):
    """Packets in order of arrival. Following means: the cursor is on the newest, the last one."""

    def update(self, items: Sequence[Struct], now: float, _: Sequence[Incident] = ()) -> None:
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

    def target(self, now: float) -> Struct | None:
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
        if self._snapshot.origin.kind == "session":
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


_SECONDS_BESIDE = 1.0  # between two lists of packets on a tab of several lists
_PAUSE_SECONDS = 0.2  # the cursor rests this long on a packet before it is decoded


class PacketActions:
    """Keeps list and pane up to date, and carries out the keys of the Packets tab."""

    def __init__(self, desk: Desk, panel: PacketPanel, pane: Lines, pause: Callable[[], None]) -> None:
        self._desk = desk
        self._pause = pause
        self._controls = desk.controls
        self._say = desk.say
        self._panel = panel
        self._pane = pane
        self._asking = False
        self._asked: Snapshot | None = None
        self._asked_at = -math.inf
        self._panel.drawn = self._draw_pane
        self._decoded: tuple[tuple[int, int] | None, Dissection | None] = (None, None)
        self._wanted: tuple[int, int] | None = None  # decoded if the cursor rests on it

    @property
    def _rests(self) -> bool:
        """Whether the cursor stays on its packet: a live list that is not held runs on."""
        return self._panel.book.held or not self._panel.live

    def refresh(self, snapshot: Snapshot | None, *, closely: bool, now: float) -> None:
        """Ask for the packets of a new snapshot, unless nobody looks or the last request is under way.

        Where the list is one of many it is renewed once a second: in a flood all of its rows change.
        """
        due = closely or not 0 <= now - self._asked_at < _SECONDS_BESIDE
        if self._panel.display and due and not self._asking and snapshot is not self._asked:
            self._asking, self._asked, self._asked_at = True, snapshot, now
            self._desk.begin(self._fetch, group="packets", exclusive=True)

    async def _fetch(self) -> None:
        try:
            self._panel.offer(await self._controls.packets())
        except FwtopError as error:
            self._say(safe_text(error), BAD)
        finally:
            self._asking = False

    def hold(self) -> None:
        """Hold the list, or go on; a recording is paused."""
        if self._desk.feed.player is not None:
            self._pause()
            return
        self._panel.hold(not self._panel.book.held)
        if self._panel.book.held:
            self._say(KEY_MAP.words("held: {hold} goes on; the newest packets are still kept"), WARN)
        else:
            self._say("the newest packets are followed")

    def alike(self, delta: int) -> None:
        """Select the next packet alike."""
        found = self._panel.to_alike(delta)
        if found is None:
            self._say("no packet is selected")
            return
        place, count = found
        if place:
            self._say(f"{number(place)} of {number(count)} alike")
        elif count <= 1:
            self._say("no other packet shown is like this one")
        else:
            self._say(f"this is the {'last' if delta > 0 else 'first'} of {number(count)} alike")

    def write_packets(self) -> None:
        """Write the packets shown as a pcap file."""
        shown = self._panel.book.kept
        if shown is None or not len(shown):
            self._say("there is no packet to write")
            return

        async def written() -> None:
            self._say(f"writing {number(len(shown))} packets …")
            path = await self._desk.attempt(self._controls.write_packets(shown))
            if path is not None:
                self._say(f"{number(len(shown))} packets written to {safe_text(path)}")

        self._desk.begin(written, group="write packets", exclusive=True)

    def _draw_pane(self) -> None:
        """Draw the pane, and have the selected packet decoded once the cursor rests on it."""
        item = self._panel.selected_packet()
        if not self._pane.display:
            return
        if item is None:
            self._pane.show([])
            return
        if self._rests and item.key not in (self._decoded[0], self._wanted):
            self._wanted = item.key
            self._desk.screen.set_timer(_PAUSE_SECONDS, lambda: self._decode(item))
        with self._pane.guarded():
            self._pane.show(self._lines(item))

    def _lines(self, item: PacketRow) -> list[Line]:
        shown = self._panel.book.kept
        box = self._pane.box
        rule: Line = [("─" * box.width, DIM)]
        key, dissection = self._decoded
        waiting = "decoding …" if self._rests else KEY_MAP.words("{hold} or {up} holds and decodes it")
        rows = pane_lines(
            item,
            dissection if key == item.key else None,
            self._panel.book.alike(item) if shown is not None else np.zeros(0, np.bool_),
            shown if shown is not None else item.shown,
            width=box.width - 2,
            height=box.height - 1,
            waiting="" if key == item.key else waiting,
        )
        return [rule, *([("  ", TEXT), *row] for row in rows)]

    def _decode(self, item: PacketRow) -> None:
        selected = self._panel.selected_packet()
        if selected is None or selected.key != item.key or not self._panel.display:
            self._wanted = None
            return

        async def decoded() -> None:
            try:
                found = await self._controls.dissect_packet(item.shown, item.row)
            except FwtopError as error:
                found = Dissection((), safe_text(error))
            except Exception:
                self._decoded = item.key, Dissection((), "decoding failed")  # and is not tried again
                raise
            self._decoded = item.key, found
            self._wanted = None
            self._draw_pane()

        self._desk.begin(decoded, group="decode", exclusive=True)
