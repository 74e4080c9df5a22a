"""Draw a scene for a person to look at: python tests/ui/screen_look.py SCENE WIDTHxHEIGHT FILE [KEYS…]."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from msgspec.structs import replace
from screen_factory import SCENES
from screen_fakes import FakeFeed
from screen_parts import NOW
from screen_picture import picture

from fwtop.ui.app import FwtopApp


async def draw(scene: str, size: tuple[int, int], keys: list[str]) -> str:
    seconds = [NOW - 60]
    feed = FakeFeed()
    app = FwtopApp(feed, clock=lambda: seconds[0])
    last = SCENES[scene]()
    async with app.run_test(size=size) as pilot:
        for step in range(61):  # a history: quiet, then a rise
            seconds[0] = NOW - 60 + step
            part = 0.01 if step < 25 else min(1.0, (step - 24) / 9) * (0.93 + 0.07 * (step % 4) / 3)
            totals = replace(last.tables.totals, pps=last.tables.totals.pps * part)
            app.main.take(replace(last, tables=replace(last.tables, totals=totals)))
        app.main.take(last)
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        return picture(app)


if __name__ == "__main__":
    width, height = (int(part) for part in sys.argv[2].split("x"))
    Path(sys.argv[3]).write_text(asyncio.run(draw(sys.argv[1], (width, height), sys.argv[4:])))
