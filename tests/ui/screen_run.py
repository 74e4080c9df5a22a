"""Run the screen on hand-made snapshots at a fixed clock, and read what it shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec import Struct
from screen_fakes import FakeFeed
from screen_parts import NOW
from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot

from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.app import FwtopApp
from fwtop.ui.settings import Effective

SMALL = (80, 24)
LARGE = (200, 50)
MOST_TURNS = 10_000  # of the event loop, between a key and rest; a key takes some 20


class Run(Struct):
    app: FwtopApp
    pilot: Pilot[None]
    feed: FakeFeed
    clock: list[float]

    async def press(self, *keys: str) -> None:
        """Send keys as the terminal does; Pilot's own press waits 60 ms of wall time after each."""
        for key in keys:
            await self.press_at_once(key)

    async def press_at_once(self, *keys: str) -> None:
        """Send keys as a slow link delivers them: all of them before the first one is looked at."""
        driver = self.app._driver
        assert driver is not None
        for key in keys:
            name = _character_to_key(key) if len(key) == 1 and not key.isalnum() else key
            event = events.Key(name, key if len(key) == 1 else None)
            event.set_sender(self.app)
            driver.send_message(event)
        await self.settle()

    async def settle(self) -> None:
        """Let everything run that can, until the event loop only waits: for a clock, a thread or input."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        for _ in range(4):  # a repaint asks for more work seldom, and for a second repaint hardly ever
            for _ in range(MOST_TURNS):
                if self.app._exit:
                    return
                await asyncio.sleep(0)
                if not ready:
                    break
            else:
                pytest.fail("the screen never comes to rest")
            self.app.screen._on_timer_update()  # a layout or repaint that waits for the next frame
            if not ready:
                return

    async def send(self, snapshot: Snapshot) -> None:
        self.app.main.take(snapshot)
        await self.settle()

    async def go(self, panel: str) -> None:
        """Direct the keys to a panel, on the tab that holds it."""
        self.app.main.tabs.focus(panel)
        await self.settle()

    async def until(self, true: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "did not come true in time"
            await asyncio.sleep(0.01)

    def lines(self) -> list[str]:
        """The visible screen as text, dialogs over the main screen."""
        shown = [strip.text for strip in self.app.main._compositor.render_strips()]
        if self.app.screen is not self.app.main:
            for frame in self.app.screen.query("Lines"):
                for y, line in enumerate(frame.render_line(y).text for y in range(frame.size.height)):
                    x, row = frame.region.x, frame.region.y + y
                    shown[row] = shown[row][:x] + line + shown[row][x + len(line) :]
        return shown

    def text(self) -> str:
        return "\n".join(self.lines())

    @property
    def status(self) -> str:
        return self.lines()[-2].strip()

    def selected_key(self) -> str:
        panel = self.app.main.tabs.panel
        item = panel.current()
        assert item is not None
        return panel.view.row.key(item)

    @property
    def dialog(self) -> str:
        return type(self.app.screen).__name__


@asynccontextmanager
async def running(
    snapshot: Snapshot | None,
    size: tuple[int, int] = SMALL,
    *,
    at: str = "",
    feed: FakeFeed | None = None,
    slow: bool = False,
    settings: Effective | None = None,
    faults: bool = False,
) -> AsyncIterator[Run]:
    """Open the screen on a snapshot; with `at` the keys refer to that panel, on the tab that holds it.

    `faults`: the test makes something fail that the screen survives.
    """
    clock = [NOW]
    source = feed or FakeFeed()
    source.first = snapshot
    app = FwtopApp(source, clock=lambda: clock[0], slow=slow, settings=settings)
    async with app.run_test(size=size) as pilot:
        run = Run(app, pilot, source, clock)
        await run.settle()
        if at:
            await run.go(at)
        yield run
        if not faults:
            assert not app.faults, "the screen survived what no test expects"
