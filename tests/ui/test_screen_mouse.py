"""The mouse: tabs, rows, column heads, the wheel, the footer, the graph and the buttons of dialogs."""

from __future__ import annotations

import base64

import pytest
from msgspec.structs import replace
from screen_factory import provisional, snapshot
from screen_run import LARGE, Run, running
from textual import events

from fwtop.ui.actions.row_actions import copied
from fwtop.ui.lists.panels import PANELS
from fwtop.ui.main_screen import MainScreen


async def click(run: Run, text: str, *, beside: str = "") -> None:
    """Click in the middle of a text on the screen, in a line that also contains another text."""
    lines = run.lines()
    y = next(y for y, line in enumerate(lines) if text in line and beside in line)
    x = lines[y].index(text) + len(text) // 2
    await run.pilot.click(offset=(x, y))
    await run.settle()


async def test_a_click_chooses_a_tab() -> None:
    async with running(provisional()) as run:
        await click(run, "Rules 2")
        assert run.app.main.tabs.shown.name == "rules"
        await click(run, "Overview")
        assert run.app.main.tabs.shown.name == "overview"


async def test_a_click_on_a_head_sorts_and_a_second_one_takes_it_back() -> None:
    async with running(snapshot(), LARGE) as run:
        await run.go("sources")
        await run.press("right_square_bracket")
        await click(run, "dropped", beside="network")
        assert run.app.main.tabs.panels["sources"].rows.sort_name == "dropped"
        await click(run, "dropped", beside="network")
        assert run.app.main.tabs.panels["sources"].rows.sort_name == ""


@pytest.mark.parametrize(
    ("panel", "head", "beside", "order"),
    [
        ("proposals", "clients hit", "stops", "least harm"),
        ("proposals", "CPU/pkt", "clients hit", "cheapest"),
        ("proposals", "stops", "clients hit", "stops"),
        ("all_rules", "packets", "ends UTC", "packets"),
    ],
)
async def test_heads_name_what_they_sort_by(panel: str, head: str, beside: str, order: str) -> None:
    shown = provisional()
    measured = tuple(replace(item, cost_measured=True) for item in shown.judgement.proposals)
    shown = replace(shown, judgement=replace(shown.judgement, proposals=measured))
    async with running(shown, LARGE) as run:
        await run.go(panel)
        await click(run, head, beside=beside)
        assert run.app.main.tabs.panels[panel].rows.sort_name == order


def test_every_order_of_a_head_exists() -> None:
    for view in (view for spec in PANELS for view in spec.views):
        orders = {name for name, _ in view.row.sorts}
        assert {column.sort for column in view.columns if column.sort} <= orders, view.name


async def test_the_wheel_moves_the_selection() -> None:
    async with running(snapshot()) as run:
        await run.go("sources")
        panel = run.app.main.tabs.panel
        for event, selected in ((events.MouseScrollDown, 3), (events.MouseScrollUp, 0)):
            panel.post_message(event(panel, 5, 5, 0, 0, 0, False, False, False))
            await run.settle()
            assert panel.rows.selected == selected


async def test_a_click_on_the_footer_presses_the_key() -> None:
    async with running(snapshot()) as run:
        await click(run, "? help")
        assert run.dialog == "HelpDialog"


async def test_a_click_on_the_graph_tells_what_happened_then() -> None:
    async with running(snapshot(), LARGE) as run:
        for _ in range(20):
            run.clock[0] += 1
            await run.send(snapshot())
        graph = run.app.main.bars.graph
        await run.pilot.click(offset=(graph.box.width - 20, graph.box.y + 1))
        await run.settle()
        assert "312k pps arrived, 125k reached you" in run.status


async def test_a_click_presses_a_dialogs_button() -> None:
    async with running(snapshot()) as run:
        await run.go("sources")
        await run.press("b")
        assert run.dialog == "RuleDialog"
        await click(run, "Cancel")
        assert isinstance(run.app.screen, MainScreen)
        await run.press("e")
        await click(run, " md ")
        assert run.feed.controls.calls[-1] == ("export", "md")


@pytest.mark.parametrize(("panel", "text"), [("sources", "203.0.113.1"), ("payloads", "ffffffff")])
async def test_a_row_is_copied_through_the_terminal(panel: str, text: str) -> None:
    async with running(snapshot()) as run:
        await run.go(panel)
        written: list[str] = []
        driver = run.app._driver
        assert driver is not None
        driver.write = written.append  # type: ignore[method-assign]
        await run.press("Y")
        sequence = next(part for part in written if part.startswith("\x1b]52;c;"))
        value = base64.b64decode(sequence[7:].rstrip("\a")).decode()
        assert value.startswith(text)
        assert value.isprintable()


def test_what_is_copied_of_a_proposal_is_its_command() -> None:
    offers = snapshot().judgement.proposals
    assert copied(offers[1]) == "fwtop block 203.0.113.0/24"
    assert copied(offers[3]) == "call the provider: the link is full (97.0 % of 1 Gbit/s)"
