"""What keys do on the Packets tab, and the requests that keep list and pane up to date."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fwtop.dissect.client import Dissection
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.tab_actions import TabActions
from fwtop.ui.format import number
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.packet_rows import PacketRow
from fwtop.ui.lists.packets import pane_lines
from fwtop.ui.style import BAD, DIM, GOOD, TEXT, WARN, Line

_SECONDS_BESIDE = 1.0  # between two lists of packets on a tab of several lists
_PAUSE_SECONDS = 0.2  # the cursor rests this long on a packet before it is decoded


class PacketActions:
    """Keeps list and pane up to date, and carries out the keys of the Packets tab."""

    def __init__(self, desk: Desk, tabs: TabActions, pause: Callable[[], None]) -> None:
        self._desk = desk
        self._pause = pause
        self._controls = desk.controls
        self._say = desk.say
        self._panel = tabs.packet_panel
        self._pane = tabs.texts["packet"]
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
                self._say(f"{number(len(shown))} packets written to {safe_text(path)}", GOOD)

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
