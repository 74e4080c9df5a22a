"""Recordings on the screen: the time bar, the player's keys, and a real stored session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import snapshot
from screen_fakes import STATE, FakeFeed, FakePlayer, mark
from screen_parts import NOW
from screen_run import LARGE, SMALL, Run, running

from fwtop.console.controls import ReadOnlyControls
from fwtop.console.playback.player import StoredFeed
from fwtop.console.playback.replay import session_recording
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.ui.app import FwtopApp
from fwtop.ui.bars import time_at, time_bar
from fwtop.ui.feed import PlayerState
from fwtop.ui.style import Line, width_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from stored_samples import START
from stored_sessions import sample_session


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def test_the_bar_shows_position_speed_and_events() -> None:
    shown = text(time_bar(STATE, 80))
    assert shown.startswith(" ▶ 4×     2:30 ━")
    assert shown.endswith("─  5:00 ")
    bar = shown[15:-7]
    assert (bar.index("▲") / len(bar), bar.index("●") / len(bar), bar.index("▼") / len(bar)) == (
        pytest.approx(0.1, abs=0.03),
        pytest.approx(0.5, abs=0.03),
        pytest.approx(0.9, abs=0.03),
    )
    assert "{ } event" in text(time_bar(STATE, 140))


def test_paused_whole_and_noted() -> None:
    shown = text(time_bar(replace(STATE, playing=False, whole=True, note="window 3 s"), 120))
    assert shown.startswith(" ‖ ")
    assert "whole" in shown
    assert "●" not in shown
    assert "window 3 s" in shown


def test_a_glyph_of_an_attack_wins_its_cell() -> None:
    crowd = tuple(
        mark(NOW + 30, kind)
        for kind in (EventKind.RECORDS_LOST, EventKind.ATTACK_BEGAN, EventKind.RULE_APPLIED)
    )
    shown = text(time_bar(replace(STATE, marks=crowd), 80))
    assert shown.count("▲") == 1
    assert "◆" not in shown
    assert "•" not in shown
    proposed = (mark(NOW + 30, EventKind.RULE_PROPOSED),)
    assert set(text(time_bar(replace(STATE, marks=proposed), 80))[15:-7]) == {"━", "●", "─"}


@settings(max_examples=30)
@given(
    st.integers(0, 400),
    st.floats(0, 1e7),
    st.floats(-1e8, 1e8),
    st.lists(st.floats(-1e8, 1e8), max_size=20),
    st.booleans(),
)
def test_the_bar_is_as_wide_as_its_place(
    width: int, span: float, at: float, marks: list[float], whole: bool
) -> None:
    kinds = list(EventKind)
    events = tuple(mark(NOW + when, kinds[number % len(kinds)]) for number, when in enumerate(marks))
    state = PlayerState(NOW, NOW + span, NOW + at, marks=events, whole=whole, note="window 3 s")
    assert width_of(time_bar(state, width)) == width
    for x in range(width):
        sought = time_at(state, width, x)
        assert sought is None or NOW <= sought <= NOW + span + 1e-3


def recorded() -> Snapshot:
    return snapshot(origin=Origin("session", ("eth0",), None, "2026-09-21T14-13-20-eth0"))


def played(state: PlayerState | None = STATE) -> tuple[FakeFeed, FakePlayer]:
    feed, player = FakeFeed(), FakePlayer(state)
    feed.player = player
    return feed, player


async def test_the_keys_reach_the_player() -> None:
    feed, player = played()
    async with running(recorded(), feed=feed) as run:
        await run.press("full_stop", "comma", "greater_than_sign", "less_than_sign")
        await run.press("right_curly_bracket", "left_curly_bracket", "space", "p")
        assert player.calls == [
            ("step", 1),
            ("step", -1),
            ("speed", 8.0),
            ("speed", 2.0),
            ("skip", 1),
            ("skip", -1),
            ("play", False),
            ("play", True),
        ]


async def test_at_the_end_and_at_the_highest_speed_keys_say_so() -> None:
    feed, player = played(replace(STATE, position=NOW + 300, playing=False, speed=64.0))
    async with running(recorded(), feed=feed) as run:
        await run.press("space")
        assert "end of the recording" in run.status
        await run.press("greater_than_sign")
        assert "64× is the highest speed" in run.status
        assert player.calls == []


async def test_live_traffic_has_neither_bar_nor_player() -> None:
    async with running(snapshot()) as run:
        assert "●" not in run.text()
        await run.press("full_stop")
        assert "recordings" in run.status


@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 15)])
async def test_the_header_says_replay_and_when_it_was(size: tuple[int, int]) -> None:
    feed, _ = played()
    async with running(recorded(), size, feed=feed) as run:
        assert " REPLAY " in run.lines()[0]
        assert "2026-09-21 14:13:20Z" in run.lines()[0]
        assert run.lines()[-3].startswith(" ▶ 4×")


async def test_a_click_on_the_bar_goes_there() -> None:
    feed, player = played()
    async with running(recorded(), feed=feed) as run:
        row = run.app.size[1] - 3
        place = run.lines()[row].index("▲")
        await run.pilot.click(offset=(place, row))
        await run.settle()
        assert [verb for verb, _ in player.calls] == ["seek"]
        assert player.calls[0][1] == pytest.approx(30, abs=4)


async def test_an_order_held_by_a_key_does_not_outlast_a_seek_back() -> None:
    feed, _ = played()
    async with running(recorded(), feed=feed) as run:
        await run.go("sources")
        await run.press("down")
        rows = run.app.main.tabs.panel.rows
        earlier = replace(recorded(), started=NOW - 603)
        await run.send(earlier)
        assert rows.sorted_at == NOW - 600


@pytest.fixture
def session(tmp_path: Path) -> Iterator[StoredFeed]:
    controls = ReadOnlyControls("a test", preview=None, export=str, export_formats=("json",))
    clock = [0.0]
    feed = StoredFeed(session_recording(sample_session(tmp_path)), controls, clock=lambda: clock[0])
    yield feed
    feed.stop()


async def test_a_stored_session_is_played_with_keys(session: StoredFeed) -> None:
    app = FwtopApp(session)
    async with app.run_test(size=(120, 40)) as pilot:
        run = Run(app, pilot, FakeFeed(), [])

        async def shows(second: float, *words: str) -> None:
            def there() -> bool:
                shot = app.main.desk.snapshot
                return shot is not None and round(shot.started + shot.seconds - START) == second

            await run.until(there)
            await run.settle()
            assert all(word in run.text() for word in words), run.text()

        await shows(0, "REPLAY", "2026-11-21 03:12:44Z")
        await run.press("space", "right_curly_bracket")
        await shows(20, "DNS amplification", "03:13:04Z")
        await run.press("right_curly_bracket")
        await shows(30, "rule 1  block 203.0.113.0/24")
        await run.press("full_stop")
        await shows(31)
        await run.press("left_curly_bracket", "comma")
        await shows(29)
        assert len(app.main.bars.history.points) == 59
        await run.press("u")
        assert "a test" in run.text()
