"""The Trends tab: averages of the last hour, day and 15 days."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from screen_factory import calm, snapshot
from screen_fakes import FakeFeed
from screen_picture import picture
from screen_run import LARGE, SMALL, Run, running
from test_screen_pictures import compare

from fwtop.model.rule import Rule
from fwtop.model.traffic.session import TrendGroup, TrendRow, Trends
from fwtop.store.trends import read_trends
from fwtop.ui.tabs import TRENDS
from tests.conftest import HISTORY_ENDS


@pytest.fixture(scope="module")
def stored(made_history: Path) -> Trends:
    return read_trends(made_history, HISTORY_ENDS)


@pytest.fixture
def feed(stored: Trends) -> FakeFeed:
    made = FakeFeed()
    made.controls.history = stored
    return made


def asked(run: Run) -> int:
    return run.feed.controls.verbs().count("trends")


async def test_calm_has_days_before_in_a_large_terminal_where_a_history_is_stored(feed: FakeFeed) -> None:
    for size, given, shown in (((120, 40), feed, False), (LARGE, feed, True), (LARGE, FakeFeed(), False)):
        async with running(calm(), size, feed=given) as run:
            await run.send(calm())
            assert run.app.main.tabs.panels["trend_traffic"].display is shown
            assert ("of 15 days" in run.text()) is shown
            await run.go("trend_traffic")
            assert run.app.main.tabs.shown.name == "trends", "keys refer to it there"


async def test_the_tab_shows_what_the_history_holds(feed: FakeFeed, stored: Trends) -> None:
    async with running(calm(), LARGE, feed=feed, at="trend_traffic") as run:
        text = run.text()
        for title in ("Countries", "Networks", "Cities", "Ports", "Service addresses", "Dark addresses"):
            assert f"{title} (synthetic)" in text
        assert "synthetic data, made by" in text
        arrived = next(line for line in run.lines() if "arrived" in line and "▇" in line)
        assert arrived.split()[2] == f"{(stored.group('traffic')[0].hour or 0) / 1000:.2f}k"
        for kind in ("country", "network", "port", "service", "dark", "city"):
            assert stored.group(kind)[0].key in text


@pytest.mark.parametrize("size", [(60, 15), SMALL, (120, 40)])
async def test_every_list_is_reached_by_tab(feed: FakeFeed, size: tuple[int, int]) -> None:
    async with running(calm(), size, feed=feed, at="trend_traffic") as run:
        seen = [run.app.main.tabs.panel.spec.name]
        while len(seen) < len(TRENDS):
            await run.press("tab")
            seen.append(run.app.main.tabs.panel.spec.name)
            assert run.app.main.tabs.panel.display
            assert run.app.main.tabs.panel.rows.items
        assert seen == list(TRENDS)


async def test_the_history_is_read_only_while_somebody_looks(feed: FakeFeed) -> None:
    async with running(calm(), SMALL, feed=feed) as run:
        await run.send(calm())
        assert asked(run) == 0
        await run.go("trend_traffic")
        assert asked(run) == 1
        await run.send(calm())
        assert asked(run) == 1, "averages of a minute change slowly"
        run.clock[0] += 21
        await run.send(calm())
        assert asked(run) == 2
        run.app.main.tabs.show("log")
        run.clock[0] += 60
        await run.send(calm())
        assert asked(run) == 2


async def test_without_a_history_the_reason_stands_there() -> None:
    async with running(calm(), SMALL, at="trend_traffic") as run:
        assert run.text().count("no history is stored in /var/lib/fwtop/history.db yet") == 1
        assert run.app.main.tabs.panel._title_text() == "Traffic"


async def test_details_list_the_hours(feed: FakeFeed) -> None:
    async with running(calm(), LARGE, feed=feed, at="trend_network") as run:
        await run.press("enter")
        text = run.text()
        assert "sources by network: AS64496" in text
        assert text.count(":00Z") >= 20


async def test_a_network_of_the_past_can_be_blocked_and_a_port_can_t(feed: FakeFeed) -> None:
    async with running(snapshot(), LARGE, feed=feed, at="trend_network") as run:
        await run.press("b")
        rules = [value for verb, value in feed.controls.calls if verb == "expand"]
        assert [rule.origin for rule in rules if isinstance(rule, Rule)] == ["asn:64496"]
        await run.press("escape")
        await run.go("trend_port")
        await run.press("b")
        assert "only countries and networks" in run.status


async def test_v_turns_to_what_went_to_service_and_to_dark_addresses(feed: FakeFeed, stored: Trends) -> None:
    async with running(calm(), LARGE, feed=feed, at="trend_port") as run:
        assert run.app.main.tabs.panel.view.name == "all"
        shown = []
        for _ in range(3):
            await run.press("v")
            panel = run.app.main.tabs.panel
            shown.append((panel.view.name, {item.key for item in panel.rows.items}))
        assert [name for name, _ in shown] == ["service", "dark", "all"]
        assert shown[0][1] == {row.key for row in stored.group("service port")}
        assert shown[1][1] == {"tcp/23", "tcp/5555"}
        await run.go("trend_traffic")
        assert "to service addresses" in run.text()
        assert "to dark addresses" in run.text()


async def test_what_nobody_observed_is_marked_and_names_are_data(stored: Trends) -> None:
    feed = FakeFeed()
    nothing = (None,) * 360
    row = TrendRow("[red]x[/]" * 9, "[link=x]", None, nothing[:24], None, nothing)
    feed.controls.history = replace(stored, note="", groups=(TrendGroup("country", (row,)),))
    async with running(calm(), LARGE, feed=feed, at="trend_country") as run:
        line = next(line for line in run.lines() if "[red]x" in line)
        assert "·" * 24 in line
        assert "synthetic" not in run.text()


@pytest.mark.parametrize("size", [SMALL, (120, 40), LARGE])
async def test_the_tab_looks_as_kept(feed: FakeFeed, size: tuple[int, int]) -> None:
    async with running(calm(), size, feed=feed, at="trend_traffic") as run:
        drawn = picture(run.app)
    compare(drawn, f"trends-history-{size[0]}x{size[1]}")
