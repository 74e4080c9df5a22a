"""Draw a scene to SVG for a person to look at: python tests/ui/screen_look.py SCENE WIDTHxHEIGHT FILE [KEYS…]."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fwtop.ui.app import FwtopApp
from screen_factory import NOW, SCENES
from screen_fakes import FakeFeed


async def draw(scene: str, size: tuple[int, int], keys: list[str]) -> str:
    app = FwtopApp(FakeFeed(SCENES[scene]()), clock=lambda: NOW)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        return app.picture()


if __name__ == "__main__":
    width, height = (int(part) for part in sys.argv[2].split("x"))
    Path(sys.argv[3]).write_text(asyncio.run(draw(sys.argv[1], (width, height), sys.argv[4:])))
