"""Colours can be told apart, also with deuteranopia; states can be told apart without any colour."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from rich.color import Color
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from screen_factory import SCENES, calm, protected, spoofed, trial
from screen_parts import NOW, PPS, SECONDS, with_fates
from screen_past import remembering
from screen_picture import PICTURE_THEME
from screen_run import SMALL, running
from test_screen_pictures import compare, picture
from test_screen_player import played, recorded

from fwtop.model.files import ConfigText
from fwtop.model.traffic.snapshot import LedgerRow, Snapshot
from fwtop.ui import style
from fwtop.ui.lists.table import CellContext
from fwtop.ui.lists.traffic import TRAFFIC_VIEWS
from fwtop.ui.settings import Effective, read_settings
from fwtop.ui.style import themed

# They stand side by side: harm, estimated, mine, another firewall, what is chosen
MEANINGS = {
    "BAD": style.BAD,
    "WARN": style.WARN,
    "GOOD": style.GOOD,
    "ELSEWHERE": style.ELSEWHERE,
    "ACCENT": style.ACCENT,
}
GREY = (138, 138, 138)  # colour 245
# The sixteen colours as xterm has them (XTerm-col.ad)
XTERM = TerminalTheme(
    (0, 0, 0),
    (229, 229, 229),
    [
        (0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0),
        (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229),
    ],
    [
        (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0),
        (92, 92, 255), (255, 0, 255), (0, 255, 255), (255, 255, 255),
    ],
)  # fmt: skip
# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency": deuteranomaly of severity 1.0, of linear RGB
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
TO_XYZ = np.array(
    [[0.412456, 0.357576, 0.180437], [0.212673, 0.715152, 0.072175], [0.019334, 0.119192, 0.950304]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])  # D65
Rgb = tuple[int, int, int]


def lab(rgb: Rgb, *, deuteranopia: bool) -> np.ndarray:
    """Return a colour of sRGB in CIE 1976 L*a*b*, as seen."""
    part = np.array(rgb) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    if deuteranopia:
        linear = np.clip(DEUTERANOPIA @ linear, 0, 1)
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in TO_XYZ @ linear / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: Rgb, other: Rgb) -> float:
    """Return how far apart two colours are at least: CIE76, where 2.3 is just noticeable side by side."""
    return min(
        float(np.linalg.norm(lab(one, deuteranopia=kind) - lab(other, deuteranopia=kind)))
        for kind in (False, True)
    )


def shown(theme: str, of: TerminalTheme) -> dict[str, Rgb]:
    colours = {}
    for name, meaning in MEANINGS.items():
        colour = themed(theme, meaning).color
        assert isinstance(colour, Color)
        colours[name] = tuple(colour.get_truecolor(of))
    return {**colours, "kernel": GREY}


@pytest.mark.parametrize(
    ("theme", "of", "least"),
    [
        ("ansi", XTERM, 15.0),
        ("ansi", PICTURE_THEME, 13.0),
        ("contrast", XTERM, 15.0),
        ("dark", XTERM, 24.0),
        ("light", XTERM, 19.0),
        ("deuteranopia", XTERM, 24.0),
    ],
)
def test_colours_of_different_meaning_are_far_apart(theme: str, of: TerminalTheme, least: float) -> None:
    for (one, first), (other, second) in itertools.combinations(shown(theme, of).items(), 2):
        assert distance(first, second) >= least, f"{theme}: {one} {first} and {other} {second}"


def test_the_simulation_takes_red_and_green_for_much_the_same() -> None:
    """Black and white stay; what deuteranopes confuse comes near."""
    red, green = (160, 72, 0), (70, 115, 0)
    normal, simulated = (
        np.linalg.norm(lab(red, deuteranopia=kind) - lab(green, deuteranopia=kind)) for kind in (False, True)
    )
    assert simulated < normal / 3
    assert distance((0, 0, 0), (255, 255, 255)) == pytest.approx(100, abs=0.1)


def unprotected() -> Snapshot:
    """A spoofed flood all of which is delivered."""
    shown = spoofed()
    ledger = (LedgerRow("delivered", "accepted", round(PPS * SECONDS), PPS),)
    return with_fates(replace(shown, tables=replace(shown.tables, ledger=ledger)))


STATES: dict[str, Callable[[], Snapshot]] = {
    "unprotected": unprotected,
    "trial": trial,
    "protected": protected,
    "partly": SCENES["vectors"],
    "calm": calm,
    "replay": recorded,
}


def settings(theme: str) -> Effective:
    return read_settings([ConfigText("/f", f"theme = '{theme}'")])


async def draw(state: str, theme: str, size: tuple[int, int]) -> tuple[str, list[str]]:
    """Return the picture of a state, and its lines."""
    feed = played()[0] if state == "replay" else None
    async with remembering(STATES[state](), size, feed, settings=settings(theme)) as run:
        return picture(run.app), run.lines()


@pytest.mark.one_each
@pytest.mark.parametrize("theme", ["ansi", "deuteranopia", "NO_COLOR"])
@pytest.mark.parametrize("state", STATES)
async def test_themes_look_as_kept(state: str, theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if theme == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    drawn, _ = await draw(state, "ansi" if theme == "NO_COLOR" else theme, (100, 30))
    colours = {tuple(bytes.fromhex(found)) for found in re.findall(r"fill: ?#([0-9a-f]{6})", drawn)}
    coloured = {colour for colour in colours if np.hypot(*lab(colour, deuteranopia=False)[1:]) > 15}
    assert bool(coloured) == (theme != "NO_COLOR"), coloured
    compare(drawn, f"theme-{theme}-{state}")


async def test_states_can_be_told_apart_by_words_alone() -> None:
    """At the smallest usual size, by the line of the badge."""
    badges = {state: (await draw(state, "mono", SMALL))[1] for state in STATES}
    words = {state: lines[1].split()[0] for state, lines in badges.items() if state != "replay"}
    assert words == {state: state.upper() for state in words}
    assert "REPLAY" in badges["replay"][0]


@pytest.mark.parametrize(
    ("row", "colour"),
    [
        (LedgerRow("netfilter", "NETFILTER_DROP", 3, PPS, rule="7"), style.GOOD),
        (LedgerRow("netfilter", "NETFILTER_DROP", 3, PPS), style.ELSEWHERE),
        (LedgerRow("ip", "NO_SOCKET", 3, PPS), style.DIM),
    ],
)
def test_only_what_my_rules_drop_is_green(row: LedgerRow, colour: Style) -> None:
    shown = SCENES["few_sources"]()
    shown = with_fates(replace(shown, tables=replace(shown.tables, ledger=(row,))))
    context = CellContext(NOW, snapshot=shown)
    source = replace(shown.tables.sources.address[0], dropped_share=1.0, dropped_low=1.0, dropped_high=1.0)
    (view,) = (view for view in TRAFFIC_VIEWS if view.name == "address")
    (column,) = (column for column in view.columns if column.name == "dropped")
    assert column.cell(source, context, 8) == [("100 %", colour)]


async def test_the_selection_is_hollow_without_focus() -> None:
    async with running(SCENES["few_sources"](), (120, 40)) as run:
        for panel, other in (("proposals", "attacks"), ("attacks", "proposals")):
            await run.go(panel)
            marks = [line[:1] for line in run.lines() if line[:1] in "▸▹"]
            assert marks.count("▸") == 1
            assert len(marks) == 3, "attacks, proposals and sources have each a selected row"
            assert run.app.main.tabs.panels[other].box.height > 0


async def test_what_is_bad_has_a_cross() -> None:
    _, lines = await draw("partly", "mono", (120, 40))
    assert any("60.0 % ✖" in line for line in lines), "reaches services"
    _, lines = await draw("trial", "mono", (120, 40))
    assert any("6.2 % ✖" in line for line in lines), "clients hit"
    assert all("0.4 % ✖" not in line for line in lines), "below the limit of harm"
