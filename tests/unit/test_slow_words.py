"""A slow attack is as large as the connections that it holds: no medium measures it in packets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest
from analysis_factory import STARTED, make_batch, make_frames, make_tables, make_window
from held_tables import table
from msgspec.structs import replace

from fwtop.alarms.message import AlarmConfig
from fwtop.console.headless import render
from fwtop.console.publish.alarms import AlarmEvents
from fwtop.incidents.advisor import Advisor
from fwtop.model.rule import Kind, Match, Rule, RuleStatus, State
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.render.observation import observation_json
from fwtop.store.events import derive
from fwtop.ui.header.lines import HeaderState, header_lines
from fwtop.ui.lists.attacks import ATTACK_VIEW
from fwtop.ui.lists.details import attack_lines
from fwtop.ui.lists.history import History
from fwtop.ui.lists.table import CellContext, fit_columns, row_lines
from fwtop.ui.style import Line

SIZE = "holds 400 of 480 connections of 80/tcp"


@pytest.fixture(scope="module")
def shot() -> Snapshot:
    """Slow headers beside clients, as a window without a packet shows them."""
    window = make_window(make_batch(make_frames([], 3.0)), 3.0, live=True)
    window = replace(window, sockets=table(("headers", 400, 4), ("kept alive", 60, 30), ("pushed", 20, 20)))
    tables = make_tables(window)
    return Snapshot("web1", Origin("live"), STARTED, 3.0, tables, Advisor().judge(window, tables))


def text(lines: Iterable[Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def row(shot: Snapshot, width: int) -> str:
    layout = fit_columns(ATTACK_VIEW.columns, width)
    return text(row_lines(layout, shot.judgement.attacks[0], CellContext(shot.at, snapshot=shot)))


def alarms(shot: Snapshot) -> str:
    raised = AlarmEvents(AlarmConfig(began_seconds=0.0))
    return "\n".join(one.message for _ in range(2) for one in raised.next(shot))


MEDIA: dict[str, Callable[[Snapshot], str]] = {
    "list": lambda shot: row(shot, 130),
    "header": lambda shot: text(header_lines(shot, History(), HeaderState(shot.at), 160)[1:2]),
    "details": lambda shot: text(attack_lines(shot.judgement.attacks[0], shot.at, shot)),
    "log": lambda shot: "\n".join(event.text for event in derive(None, shot)[:1]),
    "alarm": alarms,
    "text": lambda shot: "\n".join(render(shot).splitlines()[4:]),
}


@pytest.mark.parametrize("medium", MEDIA)
def test_every_medium_says_how_many_connections_it_holds(medium: str, shot: Snapshot) -> None:
    words = MEDIA[medium](shot)
    assert SIZE in words
    assert not re.search(r"\b0(\.0)? ?(pps|Mb/s|packets a second)", words), words


def test_in_a_narrow_list_the_number_stays(shot: Snapshot) -> None:
    for width in range(50, 130):
        assert "400" in row(shot, width), width
    assert "holds 400 of 480 connections" in row(shot, 80)


def test_programs_get_the_numbers(shot: Snapshot) -> None:
    [attack] = observation_json(shot)["attacks"]
    assert (attack["holds"], attack["holds_of"]) == (400, 480)


def test_its_end_says_what_it_held(shot: Snapshot) -> None:
    calm = replace(shot, started=shot.at, judgement=replace(shot.judgement, attacks=()))
    [ended] = derive(shot, calm)
    assert "held 400 of 480 connections of 80/tcp" in ended.text


def test_a_trial_that_leaves_connections_open_says_so(shot: Snapshot) -> None:
    """What is foretold of a slow attack is a share of its connections: packets can't fulfil it."""
    rule = Rule("7", Kind.STRING, Match(dport=80), "", 600, STARTED - 9, predicted_attack_share=1.0)
    status = RuleStatus(rule, State.PROVISIONAL, 90, 900, 30.0, shot.at + 25, shot.at + 20)
    words = text(
        header_lines(replace(shot, mitigations=(status,)), History(), HeaderState(shot.at), 200)[1:2]
    )
    assert f"the attack still {SIZE}" in words
    assert "expected" not in words
