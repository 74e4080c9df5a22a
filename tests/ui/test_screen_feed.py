"""Snapshots in, and what the terminal may look like: sizes, slow links, no colour, poison."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace
from screen_factory import SCENES, poison, provisional, snapshot
from screen_parts import NOW
from screen_run import LARGE, SMALL, Run, running

import fwtop.ui.app
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.bars import StatusMessage
from fwtop.ui.tabs import TABS


def with_rate(pps: float) -> Snapshot:
    base = snapshot()
    return replace(base, tables=replace(base.tables, totals=replace(base.tables.totals, pps=pps)))


async def test_before_the_first_snapshot_no_list_says_what_it_cannot_know() -> None:
    """With keys pressed the Path tab said that a capture doesn't tell, and Rules that no rule is active."""
    async with running(None) as run:
        for tab in TABS:
            run.app.main.tabs.show(tab.name)
            await run.press("down", "tab")
            for said in ("a capture", "no rule", "nothing has happened", "nothing yet"):
                assert said not in run.text(), tab.name


async def test_newest_snapshot_wins_whatever_the_feed_sends() -> None:
    async with running(None) as run:
        assert "waiting for the first numbers" in run.status

        def flood() -> None:
            for number in range(500):
                run.feed.send(with_rate(1000.0 + number))
            run.feed.send(with_rate(777.0))

        sender = threading.Thread(target=flood)
        sender.start()
        sender.join()
        await run.until(lambda: "arrives 777 " in run.text())
        frames = run.app._last_frame
        assert frames > 0


async def test_feed_that_breaks_closes_with_its_line() -> None:
    async with running(snapshot()) as run:
        run.feed.fail(FwtopError("the ring buffer is gone; nothing was changed", 3))
        await run.until(lambda: run.app.return_code is not None)
        assert run.app.return_code == 3


async def test_selection_survives_snapshots() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("down", "down")
        base = snapshot()
        rows = base.tables.sources.address[::-1]
        run.clock[0] = NOW + 60
        await run.send(
            replace(base, tables=replace(base.tables, sources=replace(base.tables.sources, address=rows)))
        )
        assert run.selected_key() == "203.0.113.3"
        assert "▸ 203.0.113.3 " in run.text(), "and it is scrolled into view"


async def test_vanished_row_stays_marked() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("down")
        base = snapshot()
        rows = tuple(row for row in base.tables.sources.address if row.key != "203.0.113.2")
        run.clock[0] = NOW + 60
        await run.send(
            replace(base, tables=replace(base.tables, sources=replace(base.tables.sources, address=rows)))
        )
        assert run.app.main.tabs.panel.rows.gone
        await run.press("b")
        assert "block 203.0.113.2" in run.text()


def assert_clean(run: Run, width: int, height: int) -> None:
    lines = run.lines()
    assert len(lines) == height
    for line in lines:
        assert len(line) == width
        assert line.isprintable(), f"unprintable: {line!r}"


SIZES = [SMALL, LARGE, (132, 34), (100, 30), (60, 15), (61, 19), (80, 20)]


@pytest.mark.one_each
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("scene", sorted(SCENES))
async def test_every_line_is_whole_at_every_size(scene: str, size: tuple[int, int]) -> None:
    async with running(SCENES[scene](), size) as run:
        for _ in TABS:
            for _ in range(3):
                assert_clean(run, *size)
                await run.press("tab")
            await run.press("right_square_bracket")


async def test_resize_to_tiny_and_back() -> None:
    async with running(snapshot()) as run:
        before = run.lines()
        for size in ((40, 10), (1, 1), (200, 50), (59, 24), (60, 15)):
            await run.pilot.resize_terminal(*size)
            await run.settle()
            if size in ((40, 10), (59, 24)):
                assert f"fwtop needs 60×15; this is {size[0]}×{size[1]}"[: size[0]] in run.text()
                await run.press("b", "escape")
        await run.pilot.resize_terminal(*SMALL)
        await run.settle()
        assert run.lines()[:-2] == before[:-2]


async def test_dialog_survives_resize() -> None:
    async with running(snapshot()) as run:
        await run.press("b")
        for size in ((60, 15), (200, 50), (30, 8), (80, 24)):
            await run.pilot.resize_terminal(*size)
            await run.settle()
        assert "▸ Install" in run.text()


async def test_poison_is_shown_and_does_nothing() -> None:
    async with running(poison()) as run:
        assert "web[/]1·" in run.lines()[0]
        assert "flood [/] [@click=app.quit]x" in run.text()
        await run.go("payloads")
        assert "GET / [/] HTTP [@cl" in run.text()
        await run.pilot.click("#payloads", offset=(22, 2))
        await run.press("enter")
        assert "@click=app.quit]" in run.text()
        assert_clean(run, *SMALL)
        await run.press("escape", "s")
        assert run.dialog == "RuleDialog"
        assert_clean(run, *SMALL)
        assert run.app.is_running


async def test_click_selects_a_row() -> None:
    async with running(snapshot(), LARGE) as run:
        await run.pilot.click("#ports", offset=(5, 4))
        await run.settle()
        assert run.app.main.tabs.panel.spec.name == "ports"
        assert run.selected_key() == "tcp dst 443"


async def test_slow_mode_draws_no_bars_and_no_history() -> None:
    async with running(snapshot(), LARGE) as run:
        assert "━━━━━━━" in run.text()
    async with running(snapshot(), LARGE, slow=True) as run:
        panels = "\n".join(run.lines()[4:])
        assert "━" not in panels
        assert "█" not in run.text()


async def test_without_colour_the_selection_and_the_alarm_are_still_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(snapshot(), at="sources") as run:
        styles = [segment.style for strip in run.app.main._compositor.render_strips() for segment in strip]
        assert all(style is None or style.color is None or style.color.is_default for style in styles)
        reversed_text = [
            segment.text
            for strip in run.app.main._compositor.render_strips()
            for segment in strip
            if segment.style is not None and segment.style.reverse
        ]
        assert any("PARTLY" in text for text in reversed_text)
        assert any("203.0.113.1 " in text for text in reversed_text)


async def test_recording_keeps_its_own_time() -> None:
    base = snapshot()
    stored = replace(base, origin=replace(base.origin, kind="session", file="session 12"))
    async with running(stored) as run:
        run.clock[0] = NOW + 1e6
        run.app.main.view.redraw_lines()
        assert "since 1m46s" in run.text() or "since" not in run.lines()[2]
        await run.press("a")
        assert "1m46s ago" in run.text()


async def test_only_changed_lines_are_repainted() -> None:
    async with running(snapshot(), LARGE) as run:
        repainted: list[int] = []
        panel = run.app.main.tabs.panels["sources"]
        panel.refresh = lambda *regions, **_: repainted.append(len(regions)) or panel  # type: ignore[method-assign]
        await run.send(snapshot())
        assert repainted == []
        base = snapshot()
        first, *rest = base.tables.sources.address
        rows = (replace(first, dropped_share=0.5), *rest)
        await run.send(
            replace(base, tables=replace(base.tables, sources=replace(base.tables.sources, address=rows)))
        )
        assert repainted == [1]


def marked_panels(run: Run) -> list[str]:
    """Return the visible panels whose title is drawn as the one that keys refer to."""
    found = []
    for name, panel in run.app.main.tabs.panels.items():
        if panel.display and any(
            segment.style and segment.style.reverse and segment.text.strip()
            for segment in panel.render_line(0)
        ):
            found.append(name)
    return found


@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 15), (120, 40)])
async def test_panel_that_keys_refer_to_is_marked(size: tuple[int, int]) -> None:
    async with running(provisional(), size) as run:
        for tab in TABS:
            run.app.main.tabs.show(tab.name)
            for _ in tab.panels:
                await run.press("tab")
                assert marked_panels(run) == [run.app.main.tabs.panel.spec.name]


async def test_dialog_takes_the_footers_keys_away() -> None:
    async with running(snapshot(), LARGE) as run:
        assert "b block" in run.lines()[-1]
        await run.press("enter")
        assert run.lines()[-1].strip() == ""
        await run.press("escape")
        assert "b block" in run.lines()[-1]


def test_what_takes_long_spins_with_the_time_it_has_taken() -> None:
    clock = [100.0]
    message = StatusMessage(lambda: clock[0])
    message.say("installing …")
    assert "".join(text for text, _ in message.current()) == " installing …"
    clock[0] = 112.5
    assert "".join(text for text, _ in message.current()) == " - installing … 12.5 s"
    message.say("rule 7 is installed")
    assert message.current()
    clock[0] += 8
    assert message.current() == []


@pytest.fixture
def no_whole_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the frame that follows a terminal's last change of size, with lists and all."""
    monkeypatch.setattr(fwtop.ui.app, "_SETTLED_SECONDS", 3600.0)


@pytest.mark.usefixtures("no_whole_frame")
async def test_slow_links_get_long_lists_every_five_seconds() -> None:
    """In a flood with forged sources every row changes with every snapshot; rates and attacks don't wait."""
    base = snapshot()
    sources = tuple(
        replace(source, key=f"192.0.2.{n}") for n, source in enumerate(base.tables.sources.address)
    )
    tables = replace(base.tables, sources=replace(base.tables.sources, address=sources))
    async with running(base, LARGE, slow=True) as run:
        await run.send(replace(base, tables=tables))
        assert "192.0.2.1" not in run.text()
        run.clock[0] += 5.0
        await run.send(replace(base, tables=tables))
        assert "192.0.2.1" in run.text()


@pytest.mark.usefixtures("no_whole_frame")
async def test_slow_links_get_costly_lists_less_often() -> None:
    """Whatever a list takes, in no ten seconds may it take more than the link gives."""
    base = snapshot()
    async with running(base, LARGE, slow=True) as run:
        for seconds, drawn in ((6.0, False), (2.0, False), (8.0, True)):
            run.app.main.view.sent = lambda: 20_000
            run.clock[0] += seconds
            fresh = tuple(
                replace(source, key=f"192.0.2.{run.clock[0]:.0f}") for source in base.tables.sources.address
            )
            await run.send(
                replace(
                    base, tables=replace(base.tables, sources=replace(base.tables.sources, address=fresh))
                )
            )
            assert (fresh[0].key in run.text()) is drawn
