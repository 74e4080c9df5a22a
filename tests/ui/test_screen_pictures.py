"""What the screen looks like, kept as pictures: FWTOP_UPDATE_PICTURES=1 accepts the present look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from screen_factory import SCENES
from screen_run import LARGE, SMALL, running

KEPT = Path(__file__).with_name("snapshots")
CASES = [(scene, size, ()) for scene in SCENES for size in (SMALL, LARGE)]
DIALOGS = [
    ("few_sources", SMALL, ("b",)),
    ("few_sources", LARGE, ("b",)),
    ("poison", SMALL, ("tab", "tab", "enter")),
    ("spoofed", SMALL, ("a",)),
    ("calm", SMALL, ("question_mark",)),
    ("provisional", SMALL, ("m",)),
    ("provisional", LARGE, ("m",)),
    ("provisional", (120, 40), ()),
]


@pytest.mark.parametrize(("scene", "size", "keys"), CASES + DIALOGS)
async def test_scene_looks_as_kept(scene: str, size: tuple[int, int], keys: tuple[str, ...]) -> None:
    async with running(SCENES[scene](), size) as run:
        await run.press(*keys)
        drawn = run.app.picture()
    name = "-".join([scene, f"{size[0]}x{size[1]}", *keys])
    kept = KEPT / f"{name}.svg"
    if os.environ.get("FWTOP_UPDATE_PICTURES"):
        KEPT.mkdir(exist_ok=True)
        kept.write_text(drawn)
    assert kept.is_file(), f"no kept picture {kept.name}: run with FWTOP_UPDATE_PICTURES=1 and look at it"
    if drawn != kept.read_text():
        new = Path("/tmp") / f"{name}.new.svg"  # noqa: S108
        new.write_text(drawn)
        pytest.fail(f"{kept.name} looks different now: compare with {new}", pytrace=False)


async def test_pictures_need_nothing_from_elsewhere() -> None:
    async with running(SCENES["calm"]()) as run:
        drawn = run.app.picture()
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "").replace("https", "").replace(
        "http ", ""
    )
    assert "<script" not in drawn
