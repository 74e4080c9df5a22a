"""The history graph: who took the packets, the newest at the right edge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen_factory import calm, provisional, snapshot, trial
from screen_fakes import FakeFeed
from screen_parts import NOW
from screen_run import running

from fwtop.model.traffic.session import Flow
from fwtop.ui.graph import COLUMN_SECONDS, graph_lines
from fwtop.ui.layout import graph_height
from fwtop.ui.lists.history import HISTORY_SECONDS, History, Past, Point
from fwtop.ui.style import BAD, GOOD, Line, width_of

RATE = st.floats(0, 1e9, allow_nan=False)
FLOW = st.builds(Flow, RATE, RATE, RATE, RATE, RATE, RATE, RATE)


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def history_of(*flows: Flow, begin: int = 1000) -> History:
    history = History()
    for second, flow in enumerate(flows):
        history.add(Point(flow, attack=True), begin + second)
    return history


def drawn(history: History, *, in_bits: bool = False, height: int = 6) -> list[str]:
    return [text(line) for line in graph_lines(history, 85, height, in_bits=in_bits)]


def test_parts_stand_on_each_other_and_the_right_edge_is_now() -> None:
    flood = Flow(1000.0, mine=200.0, other=200.0, kernel=200.0, reaches=400.0)
    column = [line[7 + 59] for line in drawn(history_of(*[flood] * 10))]
    assert column == ["░", "▒", "▓", "█", "█", "─"]
    before = [line[7 + 59 - 5] for line in drawn(history_of(*[flood] * 10))]
    assert before[:5] == [" "] * 5, "nothing was seen before the first second"


def test_columns_show_their_busier_second() -> None:
    quiet, peak = Flow(10.0, reaches=10.0), Flow(1000.0, reaches=1000.0)
    assert COLUMN_SECONDS == 2
    last = [line[7 + 59] for line in drawn(history_of(*[quiet] * 9, peak, quiet))]
    assert last[0] == " "
    assert drawn(history_of(*[quiet] * 9, peak, quiet))[0][7 + 58] == "█"


def test_something_that_reaches_services_is_never_drawn_as_nothing() -> None:
    little = Flow(1.0, reaches=1.0)
    lines = drawn(history_of(*[Flow(1e6, reaches=1e6)] * 4, *[little] * 4))
    assert lines[4][7 + 59] == "▁"


def test_rules_are_marked_where_they_were_installed() -> None:
    history = history_of(*[Flow(10.0, reaches=10.0)] * 60, begin=1000)
    history.marks["118"] = 1039.0
    axis = drawn(history)[-1]
    assert axis.index("▲118") == 7 + 59 - (1059 // 2 - 1039 // 2)
    history.marks["118"] = 1057.0
    assert drawn(history)[-1].index("118▲") == 7 + 59 - 1 - 3, "a new rule's mark is whole, too"


def test_bits_keep_the_parts_and_change_the_scale() -> None:
    flood = Flow(1000.0, mine=500.0, reaches=500.0, bps=8e6)
    packets, octets = drawn(history_of(flood)), drawn(history_of(flood), in_bits=True)
    assert "1k┤" in packets[0]
    assert " 10M┤" in octets[0]
    assert "bit/s ~" in octets[-1], "an estimate is marked"


@pytest.mark.parametrize(
    ("height", "most", "labels"),
    [
        (3, 700.0, ["800", "400", "0"]),
        (4, 700.0, ["750", "", "250", "0"]),
        (5, 95_000.0, ["100k", "", "50k", "", "0"]),
        (6, 95_000.0, ["100k", "", "60k", "", "20k", "0"]),
        (8, 400.0, ["420", "", "300", "", "180", "", "60", "0"]),
    ],
)
def test_the_scale_has_round_labels_at_any_height(height: int, most: float, labels: list[str]) -> None:
    lines = drawn(history_of(Flow(most, reaches=most)), height=height)
    assert [line[:6].strip() for line in lines] == labels


@pytest.mark.parametrize(
    ("rows", "height"), [(1, 0), (19, 0), (20, 3), (24, 3), (39, 5), (40, 6), (50, 8), (120, 9)]
)
def test_graph_takes_no_more_than_its_share_of_the_terminal(rows: int, height: int) -> None:
    assert graph_height(rows) == height


@given(st.lists(FLOW, max_size=30), st.integers(-5, 400), st.integers(0, 8), st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_history_fits_any_box(flows: list[Flow], width: int, height: int, in_bits: bool) -> None:
    history = history_of(*flows)
    history.marks["9"] = 990.0
    lines = graph_lines(history, width, height, in_bits=in_bits)
    assert len(lines) in (0, height)
    assert all(width_of(line) == width for line in lines)


async def test_graph_is_redrawn_at_most_once_a_second() -> None:
    async with running(snapshot()) as run:
        graph = run.app.main.bars._lines["graph"]
        before = graph._strips
        assert before
        await run.send(provisional())
        assert graph._strips is before
        run.clock[0] += 1
        await run.send(provisional())
        assert graph._strips is not before


async def test_history_stays_bounded_and_rules_are_marked_on_the_screen() -> None:
    async with running(calm()) as run:
        for _ in range(20):
            run.clock[0] += 100
            run.app.main.take(calm())
        history = run.app.main.bars.history
        assert len(history.points) == HISTORY_SECONDS
        run.app.main.take(trial())
        assert history.marks["8"] == NOW - 9
        flooded = [style for line in graph_lines(history, 80, 3, in_bits=False) for _, style in line]
        assert GOOD in flooded, "the rule drops it"
        run.clock[0] += 10
        run.app.main.take(snapshot())
        flooded = [style for line in graph_lines(history, 80, 3, in_bits=False) for _, style in line]
        assert BAD in flooded


async def test_slow_links_get_no_graph() -> None:
    async with running(snapshot(), slow=True) as run:
        assert "now  g" not in run.text()


async def test_a_screen_opened_beside_a_recorder_begins_with_what_that_one_saw() -> None:
    flood = Flow(1000.0, reaches=1000.0)
    before = tuple(Past(NOW - 300 + second, Point(flood, attack=True)) for second in range(299))
    feed = FakeFeed()
    feed.before = before
    async with running(calm(), feed=feed) as run:
        points = run.app.main.bars.history.points
        assert len(points) == 301
        assert points[0].flow == flood
        assert not points[-1].attack
        await run.send(snapshot())
        assert run.app.main.bars.history.points[0].flow == flood
