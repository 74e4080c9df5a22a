"""Tabs, rows of several lines, letters of attacks and their trends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import SCENES, calm, provisional, snapshot, spoofed
from screen_parts import NOW, attack, block_rule, joined
from screen_run import LARGE, SMALL, Run, running

from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.lists.history import _MOST, TREND_SECONDS, RecentRates
from fwtop.ui.lists.panel import Panel
from fwtop.ui.lists.rows import Scope
from fwtop.ui.lists.table import row_lines
from fwtop.ui.style import BAD, DIM, TEXT, Line, wrap_line
from fwtop.ui.tabs import TABS

# -- rows of several lines


def words(line: Line) -> list[str]:
    return "".join(text for text, _ in line).split()


@given(
    st.lists(st.tuples(st.text("ab –1 ", max_size=30), st.sampled_from((TEXT, DIM, BAD))), max_size=5),
    st.integers(1, 40),
)
def test_a_wrapped_line_loses_nothing_but_spaces_and_fits(line: Line, width: int) -> None:
    rows = wrap_line(line, width)
    assert "".join("".join(words(row)) for row in rows) == "".join(words(line))
    assert all(len("".join(text for text, _ in row).rstrip()) <= width for row in rows)
    styles = [(char, style) for text, style in line for char in text if char != " "]
    assert [(char, style) for row in rows for text, style in row for char in text if char != " "] == styles


@given(st.text("ab ", max_size=60), st.integers(2, 20))
def test_words_are_broken_only_where_they_are_longer_than_a_row(text: str, width: int) -> None:
    rows = wrap_line([(text, TEXT)], width)
    whole = [word for word in text.split() if len(word) <= width]
    assert all(word in [found for row in rows for found in words(row)] for word in whole)


@pytest.mark.parametrize("width", [-3, 0])
def test_no_width_ends_all_the_same(width: int) -> None:
    assert len(wrap_line([("some words", TEXT)], width)) <= 2


def rules_of_lines(*lengths: int) -> Snapshot:
    """Rules whose summaries take about so many lines at 80 columns."""
    base = provisional()
    many = tuple(
        replace(
            base.mitigations[0],
            rule=replace(block_rule(str(number)), summary=f"no{number}" + " word" * (8 * lines - 5)),
        )
        for number, lines in enumerate(lengths, start=1)
    )
    return replace(base, mitigations=many)


def shown_rows(run: Run, panel: Panel) -> list[int]:
    """Return the numbers of the rules whose first line is visible."""
    texts = [strip.text for strip in panel._strips]
    return [number for number in range(1, 40) if any(f" no{number} " in text for text in texts)]


async def test_the_selected_row_is_whole_wherever_the_selection_goes() -> None:
    async with running(rules_of_lines(1, 3, 2, 1, 3, 3, 1, 2, 3, 1, 2), (80, 50), at="all_rules") as run:
        panel = run.app.main.tabs.panel
        for key in ["down"] * 11 + ["up"] * 11 + ["pagedown"] * 4 + ["pageup"] * 4 + ["end", "home"]:
            await run.press(key)
            chosen = panel.rows.selected
            assert chosen + 1 in shown_rows(run, panel), key
            item = panel.current()
            assert item is not None
            whole = row_lines(panel._layout, item, panel._cell_context)
            assert panel._line_items.count(chosen) == len(whole), "all its lines"
            assert len(panel._line_items) + 2 <= panel.box.height


async def test_pages_leave_no_row_out() -> None:
    async with running(rules_of_lines(1, 3, 2, 1, 3, 3, 1, 2, 3, 1, 2), (80, 50), at="all_rules") as run:
        panel = run.app.main.tabs.panel
        seen = set(shown_rows(run, panel))
        for _ in range(11):
            await run.press("pagedown")
            seen |= set(shown_rows(run, panel))
        assert seen == set(range(1, 12))
        assert panel.rows.selected == 10


async def test_a_click_on_any_line_of_a_row_selects_it() -> None:
    async with running(rules_of_lines(1, 3, 2), (80, 50), at="all_rules") as run:
        panel = run.app.main.tabs.panel
        for line, item in enumerate(panel._line_items):
            await run.press("home")
            await run.pilot.click("#all_rules", offset=(12, line + 2))
            await run.settle()
            assert panel.rows.selected == item


# -- tabs


@pytest.mark.parametrize("size", [(60, 15), SMALL, LARGE])
async def test_every_tab_can_be_clicked(size: tuple[int, int]) -> None:
    async with running(snapshot(), size) as run:
        bar = run.app.main.tabs.tab_bar
        for tab in TABS:
            line = bar._strips[0].text
            if f" {tab.title}" not in line:
                continue  # the bar is too narrow for it: the keys reach it
            await run.pilot.click("#tabs", offset=(line.index(tab.title) + 1, 0))
            await run.settle()
            assert run.app.main.tabs.shown.name == tab.name
        before = run.app.main.tabs.shown.name
        await run.pilot.click("#tabs", offset=(bar.box.width - 2, 0))
        await run.settle()
        assert run.app.main.tabs.shown.name == before, "beside the tabs nothing happens"


async def test_a_tab_keeps_panel_and_row_while_another_is_shown() -> None:
    async with running(snapshot(), at="payloads") as run:
        await run.press("down")
        chosen = run.selected_key()
        for key in ["right_square_bracket"] * len(TABS):
            await run.press(key)
            await run.send(snapshot())
        assert run.app.main.tabs.panel.spec.name == "payloads"
        assert run.selected_key() == chosen


@pytest.mark.parametrize(
    ("scene", "sizes"),
    [("provisional", ((60, 40), (132, 16), (80, 24))), ("vectors", ((60, 15), (200, 50), (131, 33)))],
)
async def test_keys_never_refer_to_a_hidden_panel(scene: str, sizes: tuple[tuple[int, int], ...]) -> None:
    async with running(SCENES[scene]()) as run:
        main = run.app.main
        for width, height in sizes:
            await run.pilot.resize_terminal(width, height)
            await run.settle()
            for _ in TABS:
                for _ in main.tabs.shown.panels:
                    await run.press("tab")
                    assert main.tabs.panel.display, (
                        f"{main.tabs.panel.spec.name} of {main.tabs.shown.name} at {width}x{height}"
                    )
                for shown in (calm(), SCENES[scene]()):
                    await run.send(shown)
                    assert main.tabs.panel.display
                await run.press("right_square_bracket")


async def test_the_panel_that_opens_is_where_something_can_be_done() -> None:
    for shown, panel in ((calm(), "sources"), (spoofed(), "proposals"), (snapshot(), "proposals")):
        async with running(shown, LARGE) as run:
            assert run.app.main.tabs.panel.spec.name == panel


async def test_zero_clears_the_scope_on_every_tab() -> None:
    async with running(spoofed(), at="attacks") as run:
        for _ in TABS:
            run.app.main.tabs.focus("attacks")
            await run.press("enter")
            assert run.app.main.desk.scope.chosen
            await run.press("right_square_bracket", "0")
            assert run.app.main.desk.scope.chosen == 0
            assert "only A" not in run.text()


# -- letters and trends


def with_attacks(*kinds: str) -> Snapshot:
    base = snapshot()
    attacks = tuple(attack(kind=kind) for kind in kinds)
    return joined(replace(base, judgement=replace(base.judgement, attacks=attacks)))


def test_the_scope_ends_with_its_attack() -> None:
    scope, shown = Scope(), with_attacks("a", "b")
    scope.choose(shown.judgement.attacks[1])
    scope.take(shown)
    assert (scope.chosen, scope.letter) == (2, "B")
    scope.take(with_attacks("a"))
    assert (scope.chosen, scope.letter) == (0, "")


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0, 1e9)), max_size=300), st.integers(0, 4000))
@settings(deadline=None)
def test_trends_stay_bounded_and_fit(rates: list[tuple[int, float]], seconds: int) -> None:
    trends = RecentRates()
    for place, (key, rate) in enumerate(rates):
        trends.note([(str(key), rate)], NOW + place)
    assert len(trends._rates) <= _MOST
    for key, _ in rates[-3:]:
        drawn = trends.spark(str(key), NOW + len(rates) + seconds, 8)
        assert len(drawn) in (0, 8)


def test_a_trend_moves_left_and_leaves_after_five_minutes() -> None:
    trends = RecentRates()
    trends.note([("x", 100.0)], NOW - 60)
    assert trends.spark("x", NOW - 60, 8) == "", "less than a minute is no trend"
    trends.note([("x", 0.0)], NOW - 30)
    trends.note([("x", 100.0)], NOW)
    assert trends.spark("x", NOW, 8) == "      ▇▇"
    assert trends.spark("x", NOW + TREND_SECONDS / 2, 8) == "  ▇▇    "
    assert trends.spark("x", NOW + TREND_SECONDS + 5, 8) == ""
    assert trends.spark("x", NOW, 0) == ""
