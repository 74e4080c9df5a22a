"""Details of a row: every type of row of every list has them."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace
from screen_factory import calm
from screen_run import LARGE, running
from screen_world import everything_listed

from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.snapshot import Incident, Origin, Proposal, ServiceUse
from fwtop.ui.lists.details import Item, details_of
from fwtop.ui.tabs import TABS

SESSION = Origin("session", ("eth0",), None, "2026-09-21T14-13-20-eth0")


@pytest.mark.parametrize("recorded", [False, True])
async def test_enter_on_the_chosen_attack_shows_its_evidence(recorded: bool) -> None:
    shot, feed = everything_listed()
    shot = replace(shot, origin=SESSION) if recorded else shot
    async with running(shot, feed=feed, at="proposals") as run:
        await run.press("shift+tab")
        assert isinstance(run.app.main.tabs.panel.current(), Incident)
        await run.press("enter", "enter")
        assert run.dialog == "DetailsDialog"
        assert "evidence" in run.text()
        await run.press("escape")
        assert run.app.screen is run.app.main


async def test_every_type_of_row_has_details() -> None:
    """The type checker sees to it that none is forgotten; here each is shown."""
    shot, feed = everything_listed()
    seen: set[type] = set()
    async with running(shot, LARGE, feed=feed) as run:
        main = run.app.main
        for place, name in ((tab.name, name) for tab in TABS for name in tab.panels):
            main.tabs.show(place)
            await run.go(name)
            main.view.machine._asked = float("-inf")
            await run.send(shot)
            for _ in main.tabs.panel.spec.views:
                for item in {type(item): item for item in main.tabs.panel.rows.items}.values():
                    main.tabs.panel.rows.select(list(main.tabs.panel.rows.items).index(item), run.clock[0])
                    await run.press("r")
                    assert run.dialog == "DetailsDialog", name
                    await run.press("escape")
                    title, lines = details_of(item, run.clock[0])
                    assert title
                    assert lines, f"without a snapshot: {item}"
                    seen.add(type(item))
                main.tabs.panel.next_view()
                await run.settle()
        await run.send(calm())
        await run.go("services")
        await run.press("r")
        assert "usually up to 110" in run.text()
    assert seen | {ServiceUse} == set(get_args(Item))


def test_of_advice_no_share_is_told_that_it_stops() -> None:
    """What a server's settings do is not known: "stops 0 %" and "clients hit: none" were its estimate."""
    advice = Proposal(1, "server", "let the server end them sooner", 0.0, 0.0, commands=("# nginx",))
    rule = Rule("", Kind.XDP, Match(protocol=17, dport=53), "drop UDP to 53", 600)
    for item, told in ((advice, False), (replace(advice, rule=rule, attack_share=0.9), True)):
        lines = ["".join(text for text, _ in line) for line in details_of(item, 0.0)[1]]
        assert any(line.startswith("stops") for line in lines) is told
        assert any(line.startswith("clients hit") for line in lines) is told
