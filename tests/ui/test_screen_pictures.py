"""What the screen looks like, kept as pictures: FWTOP_UPDATE_PICTURES=1 accepts the present look."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from screen_factory import SCENES, harm, later, provisional, snapshot, trial
from screen_fakes import FakeFeed
from screen_packets import flood
from screen_parts import NOW
from screen_past import remembering
from screen_picture import picture
from screen_run import LARGE, SMALL, running

from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.session import PastAttack
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.tabs import TABS

KEPT = Path(__file__).with_name("snapshots")
Size = tuple[int, int]
SIZES: tuple[Size, ...] = (SMALL, (120, 40), LARGE)
TAB_NAMES = tuple(tab.name for tab in TABS)
STATES: dict[str, tuple[Callable[[], Snapshot], tuple[str, ...]]] = {  # the scene, and keys
    "calm": (SCENES["calm"], ()),
    "few_sources": (SCENES["few_sources"], ()),
    "trial": (SCENES["trial"], ()),
    "protected": (SCENES["protected"], ()),
    "vectors": (SCENES["vectors"], ()),
    "paused": (SCENES["spoofed"], ("p",)),
    "readonly": (SCENES["provisional"], ()),
    "guardian_lost": (lambda: replace(provisional(), guardian="lost: the socket closed"), ()),
}
DIALOGS: list[tuple[str, Size, str, tuple[str, ...]]] = [  # scene, size, panel that has the keys, keys
    ("few_sources", SMALL, "sources", ("b",)),
    ("few_sources", LARGE, "sources", ("b",)),
    ("poison", SMALL, "", ()),
    ("poison", LARGE, "", ()),
    ("poison", SMALL, "payloads", ("enter",)),
    ("spoofed", SMALL, "", ("a",)),
    ("conntrack_full", SMALL, "", ()),
    ("conntrack_full", LARGE, "conntrack", ()),
    ("calm", SMALL, "", ("question_mark",)),
    ("harm", SMALL, "", ()),
    ("harm", (120, 40), "", ()),
]


def compare(drawn: str, name: str) -> None:
    """Compare a picture with the kept one, or keep it."""
    kept = KEPT / f"{name}.svg"
    if os.environ.get("FWTOP_UPDATE_PICTURES"):
        KEPT.mkdir(exist_ok=True)
        kept.write_text(drawn)
    assert kept.is_file(), f"no kept picture {kept.name}: run with FWTOP_UPDATE_PICTURES=1 and look at it"
    if drawn != kept.read_text():
        new = Path("/tmp") / f"{name}.new.svg"  # noqa: S108
        new.write_text(drawn)
        pytest.fail(f"{kept.name} looks different now: compare with {new}", pytrace=False)


@pytest.mark.one_each
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("state", STATES)
async def test_tabs_look_as_kept(state: str, size: Size) -> None:
    scene, keys = STATES[state]
    feed = FakeFeed()
    feed.controls.recent = flood(60)
    feed.controls.readonly = "started with --readonly" if state == "readonly" else ""
    drawn = {}
    async with remembering(scene(), size, feed) as run:
        main = run.app.main
        await run.press(*keys)
        for tab in TAB_NAMES:
            main.tabs.show(tab)
            if tab == "packets":
                await run.until(lambda: bool(main.tabs.packet_panel.rows.items))
                main.view.redraw_lines()  # the footer's keys are those that work now
            await run.settle()
            drawn[tab] = picture(run.app)
    for tab, svg in drawn.items():
        compare(svg, f"{tab}-{state}-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", [SMALL, (100, 30), (120, 40), LARGE])
async def test_calm_after_an_attack_looks_as_kept_and_is_not_blank(size: Size) -> None:
    shot, flood_seen = SCENES["calm"](), SCENES["provisional"]()
    ended = replace(flood_seen.judgement.attacks[0], since=shot.at - 260, ended=shot.at - 180)
    over = replace(shot, judgement=replace(shot.judgement, attacks=(ended,)))
    feed = FakeFeed()
    feed.over = (
        PastAttack(
            NOW - 90_060, NOW - 90_000, "udp_flood", "UDP flood after 1 min, at most 84,000 pps", ("7",)
        ),
        PastAttack(
            NOW - 180_042,
            NOW - 180_000,
            "slow_headers",
            "Slow headers after 42 s, held 600",
            (),
            elsewhere=True,
        ),
        PastAttack(shot.at - 270, shot.at - 200, "syn_flood", "the same, as a recorder saw it"),
    )
    async with running(replace(flood_seen, started=shot.started - 200), size, feed=feed) as run:
        for age in (100, *range(60, -1, -1)):
            await run.send(replace(over if age == 100 else shot, started=shot.started - age))
        run.app.main.view.news._toasts.clear()
        run.app.main.view.redraw()
        await run.settle()
        drawn, lines = picture(run.app), run.lines()
    assert sum(not line.strip() for line in lines) < size[1] / 4
    past = [line for line in lines if re.search(r" after .* ago( |$)", line)]
    wanted = ("rules 5, 7 .*3 m ago", "84,000 pps .*rule 7 .*1 d ago", "held 600 .*your firewall .*2 d ago")
    assert all(re.search(words, line) for words, line in zip(wanted, past, strict=False))
    assert len(past) == (2 if size[1] == 30 else 3), "none twice, the latest first"
    compare(drawn, f"calm-after-{size[0]}x{size[1]}")


@pytest.mark.parametrize(("scene", "size", "at", "keys"), DIALOGS)
async def test_scene_looks_as_kept(scene: str, size: Size, at: str, keys: tuple[str, ...]) -> None:
    async with remembering(SCENES[scene](), size, at=at) as run:
        await run.press(*keys)
        drawn = picture(run.app)
    compare(drawn, "-".join(part for part in (scene, f"{size[0]}x{size[1]}", at, *keys) if part))


@pytest.mark.parametrize("size", [SMALL, (120, 40)])
async def test_the_end_of_a_trial_for_harm_looks_as_kept(size: Size) -> None:
    async with remembering(harm(trial()), size) as run:
        run.clock[0] = NOW + 3
        await run.send(replace(later(snapshot(), 3.0), tcp=TcpService(2, 44.0, 1_200.0)))
        drawn = picture(run.app)
    compare(drawn, f"harm-ended-{size[0]}x{size[1]}")


async def test_pictures_need_nothing_from_elsewhere() -> None:
    async with running(SCENES["calm"]()) as run:
        drawn = picture(run.app)
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "").replace("https", "").replace(
        "http ", ""
    )
    assert "<script" not in drawn
