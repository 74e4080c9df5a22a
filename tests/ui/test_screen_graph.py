"""The history graph: who took the packets, the newest at the right edge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen_factory import calm, later, snapshot, trial
from screen_fakes import FakeFeed
from screen_parts import NOW
from screen_run import running

from fwtop.model.traffic.session import EventKind, Flow
from fwtop.ui.graph import COLUMN_SECONDS, UNITS, Unit, graph_lines
from fwtop.ui.layout import graph_height
from fwtop.ui.lists.history import HISTORY_SECONDS, STEP, History, Past, Point
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.stack import column_cells
from fwtop.ui.style import TEXT, Line, width_of

RATE = st.floats(0, 1e9, allow_nan=False)
FLOW = st.builds(Flow, RATE, RATE, RATE, RATE, RATE, RATE, RATE)
CELLS = 60  # of the graph that `drawn` draws


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def history_of(*flows: Flow, begin: float = 1000.0, each: float = 1.0) -> History:
    history = History()
    for number, flow in enumerate(flows):
        history.add(Point(flow, attack=True), begin + number * each)
    return history


def entry(at: float, kind: EventKind, rule: str) -> LogEntry:
    return LogEntry(0, at, kind, "", rule, "", TEXT)


def drawn(
    history: History, *log: LogEntry, unit: Unit = "packets", height: int = 6, seconds: float = COLUMN_SECONDS
) -> list[str]:
    lines = graph_lines(history, log, CELLS + 25, height, unit=unit, seconds=seconds)
    return [text(line) for line in lines]


def area(lines: list[str]) -> list[str]:
    return [line[7 : 7 + CELLS] for line in lines]


def shape(
    part: tuple[float, ...], rows: int = 4, turn: int = 0, *, plain: bool = False
) -> list[tuple[str, int | None, int | None]]:
    """A column of which each row stands for 100, from above."""
    return list(reversed(column_cells(part, rows, rows * 100.0, turn, plain=plain)))


EMPTY = (" ", None, None)
YOU, MINE, OTHER, KERNEL = range(4)


@pytest.mark.parametrize(
    ("part", "cells"),
    [
        ((0, 0, 0, 0), [EMPTY] * 4),
        ((400, 0, 0, 0), [("█", YOU, None)] * 4),
        ((150, 0, 0, 0), [EMPTY, EMPTY, ("▄", YOU, None), ("█", YOU, None)]),
        ((1, 0, 0, 0), [EMPTY] * 3 + [("▁", YOU, None)]),
        ((0, 0, 0, 2), [EMPTY] * 3 + [("▁", KERNEL, None)]),
        # two colours a cell: the boundary is where it is, to an eighth
        ((150, 250, 0, 0), [("█", MINE, None), ("█", MINE, None), ("▄", YOU, MINE), ("█", YOU, None)]),
        # 531 of 1.17k dropped, once drawn as nothing
        ((128, 106, 0, 0), [EMPTY, ("▃", MINE, None), ("▃", YOU, MINE), ("█", YOU, None)]),
        # what is lower than an eighth has one, at the foot, and the whole its height
        ((350, 0.1, 0, 0), [("▄", YOU, None), ("█", YOU, None), ("█", YOU, None), ("▁", MINE, YOU)]),
        ((0.1, 350, 0, 0), [("▄", MINE, None), ("█", MINE, None), ("█", MINE, None), ("▁", YOU, MINE)]),
        # a column lower than half a cell shows the greatest part only
        ((20, 1, 0, 0), [EMPTY] * 3 + [("▂", YOU, None)]),
    ],
)
def test_parts_stand_on_each_other_in_eighths(
    part: tuple[float, ...], cells: list[tuple[str, int | None, int | None]]
) -> None:
    assert shape(part) == cells


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0.001, 1e6)), min_size=4, max_size=4),
    st.integers(4, 9),
    st.sets(st.integers(0, 3)),
)
@settings(deadline=None)
def test_no_part_that_exists_is_invisible_and_nothing_is_drawn_for_none(
    part: list[float], rows: int, high: set[int]
) -> None:
    whole, there = sum(part), {number for number, value in enumerate(part) if value > 0}
    columns = [column_cells(tuple(part), rows, whole or 1.0, turn, high=high) for turn in range(3)]
    cells = [cell for column in columns for cell in column]
    assert {one for _, *shown in cells for one in shown if one is not None} == there
    assert (whole > 0) == any(glyph != " " for glyph, *_ in cells)


@given(st.lists(RATE, min_size=4, max_size=4), st.integers(1, 9), st.integers(1, 20))
@settings(deadline=None)
def test_a_column_is_as_high_as_the_whole(part: list[float], rows: int, times: int) -> None:
    top = max(sum(part) * times / 10, sum(part), 1.0)
    cells = column_cells(tuple(part), rows, top, 0)
    height = sum(
        " ▁▂▃▄▅▆▇█".find(glyph) if behind is None and glyph not in "▓▒░" else 8 for glyph, _, behind in cells
    )
    exact = 8 * rows * sum(part) / top
    crowded = sum(value > 0 for value in part) > 2 * rows  # all are visible, in two colours a cell
    assert crowded or abs(height - exact) <= (1.0 if exact < 4 or exact >= 8 else 4.0)


def test_several_small_parts_take_turns_at_the_foot_of_the_column() -> None:
    columns = [shape((350, 1, 30, 1), turn=turn) for turn in range(6)]
    feet = [("▁", MINE, YOU), ("▂", OTHER, YOU), ("▁", KERNEL, YOU)]
    assert [column[3] for column in columns] == feet * 2
    assert {cell for column in columns for cell in column[:3]} == {("█", YOU, None), ("▇", YOU, None)}


def test_what_is_left_after_a_rule_is_a_line_and_no_cell() -> None:
    """What reached services before was once drawn a cell high, where another line stood below it."""
    columns = [column_cells((1, 397, 1, 1), 4, 400.0, turn, high=(0, 1)) for turn in range(3)]
    assert [column[0] for column in columns] == [("▁", YOU, MINE), ("▁", OTHER, MINE), ("▁", KERNEL, MINE)]
    assert {cell for column in columns for cell in column[1:]} == {("█", MINE, None)}


@pytest.mark.parametrize(("kernel", "at_foot"), [((90, 110), set()), ((80, 90), {"▆", "▇"})])
def test_a_part_about_as_high_as_a_cell_keeps_its_place(kernel: tuple[int, ...], at_foot: set[str]) -> None:
    """It once jumped between its place and the foot, column by column, as its rate changed by a tenth."""
    history = history_of(*[Flow(400, reaches=400 - rate, kernel=rate) for rate in kernel] * 30)
    *_, foot, _ = drawn(history, height=5)
    assert set(area([foot])[0]) == (at_foot or {"█"})


def test_on_the_log_scale_each_edge_stands_at_its_value() -> None:
    """What reaches services is seen when it is a thousandth: 100 of 100,000 is two fifths of the height."""
    lines = drawn(history_of(*[Flow(100_000, reaches=100, mine=99_900)] * 60), unit="log", height=6)
    assert [line[:7].strip() for line in lines] == ["100k▔", "", "1k▔", "", "10▔", "1▔"]
    spans = graph_lines(history_of(*[Flow(1e5, reaches=100, mine=99_900)] * 60), (), 85, 6, unit="log")
    colours = [line[1][1].color for line in spans[:5]]
    assert colours[0] == colours[2] != colours[3] == colours[4]
    assert "pps log" in lines[-1]


def test_a_steady_attack_costs_the_terminal_nothing_when_columns_move() -> None:
    """Small parts take turns by place: else the foot of the graph changes each second."""
    flow = Flow(400, reaches=392, mine=1, other=4, kernel=3)
    frames = [history_of(*[flow] * (CELLS * 2 + more)) for more in (0, 2)]
    before, after = (graph_lines(one, (), CELLS + 25, 6, seconds=1.0)[:-1] for one in frames)
    assert before == after
    assert len(before[-1]) > CELLS / 2, "the foot has parts that take turns"


def test_without_colours_glyphs_alone_say_whose_it_is() -> None:
    rows = [[shape((150, 250, 0, 0), turn=turn, plain=True)[row][0] for turn in range(8)] for row in range(4)]
    assert ["".join(row) for row in rows] == ["▓▓▓▓▓▓▓▓", "▓▓▓▓▓▓▓▓", "█▓█▓█▓█▓", "████████"]
    thin = [shape((0.1, 350, 0, 0), turn=turn, plain=True) for turn in range(8)]
    assert "".join(column[3][0] for column in thin) == "█▓▓▓▓▓▓▓"
    assert {column[0][0] for column in thin} == {"▓"}, "half a cell counts as one"
    assert {shape((0, 1, 0, 0), turn=turn, plain=True)[3][0] for turn in range(8)} == {"▓"}, (
        "there's something"
    )
    assert all(behind is None for column in thin for *_, behind in column)


@pytest.mark.parametrize(
    ("seconds", "most", "least"),  # seen; cells that are filled
    [(0.5, 6, 5), (3, 36, 27), (10, CELLS, 54), (29, CELLS, 54), (60, CELLS, 54), (500, CELLS, CELLS)],
)
def test_the_graph_fits_its_data(seconds: float, most: int, least: int) -> None:
    for begin in (1000.0, 1007.5, 1_795_262_400.5):
        flows = [Flow(10.0, reaches=10.0)] * int(seconds / STEP)
        lowest = area(drawn(history_of(*flows, each=STEP, begin=begin)))[-2]
        assert least <= len(lowest.strip()) <= most
        assert lowest.endswith("█"), "the right edge is now"
        assert lowest.strip() == "█" * len(lowest.strip()), "no gaps"


@pytest.mark.parametrize("seconds", [1, 2, 5])
def test_columns_are_no_wider_than_was_set_and_then_move(seconds: int) -> None:
    peak = Flow(1000.0, reaches=1000.0)
    flows = [*[Flow(10.0, reaches=10.0)] * 300, peak, *[Flow(10.0, reaches=10.0)] * 279]
    for now in range(4):
        top = area(drawn(history_of(*flows, *flows[:now], begin=2000.0), seconds=seconds))[0]
        at = CELLS - 1 - ((2579 + now) // seconds - 2300 // seconds)
        assert top.find("█") == max(at, 0), "out of sight it doesn't set the scale"


def test_columns_show_their_busiest_moment() -> None:
    quiet, peak = Flow(10.0, reaches=10.0), Flow(1000.0, reaches=1000.0)
    for place in range(40):
        flows = [*[quiet] * place, peak, *[quiet] * (700 - place)]
        assert area(drawn(history_of(*flows, each=STEP), seconds=10))[0].strip(), (
            "a peak is never averaged away"
        )


@pytest.mark.parametrize(
    ("log", "axis"),  # of 60 s, a second a cell, so that the last cell is second 59
    [
        ((), "▔▔▔▔▔▔▔▔▔▔▔▔▔▔╹45s▔▔▔▔▔▔▔▔▔▔▔╹30s▔▔▔▔▔▔▔▔▔▔▔╹15s▔▔▔▔▔▔▔▔▔▔▔▔"),
        ((entry(1039, EventKind.RULE_APPLIED, "118"),), "▲118"),
        ((entry(1057.2, EventKind.RULE_APPLIED, "118"),), "118▲"),
        ((entry(1030, EventKind.RULE_UNDONE, "118"),), "▼118"),
        ((entry(1030, EventKind.RULE_EXPIRED, "118"),), "✖118"),
        ((entry(1030, EventKind.ATTACK_BEGAN, "syn"),), "╹30s"),
        (tuple(entry(1030.1, EventKind.RULE_APPLIED, str(rule)) for rule in range(5, 9)), "▲5+3"),
        ((entry(1020, EventKind.RULE_APPLIED, "7"), entry(1025, EventKind.RULE_UNDONE, "7")), "▲7▔▔▔▼7"),
        (
            (entry(1020, EventKind.RULE_APPLIED, "117"), entry(1022, EventKind.RULE_UNDONE, "117")),
            "117▲▔▼117",
        ),
        ((entry(1020, EventKind.RULE_APPLIED, "7"), entry(1020, EventKind.RULE_UNDONE, "7")), "▲▔▼7"),
    ],
)
def test_what_became_of_rules_is_marked_without_overlap(log: tuple[LogEntry, ...], axis: str) -> None:
    history = history_of(*[Flow(10.0, reaches=10.0)] * 700, begin=360.0)
    line = area(drawn(history, *log, seconds=1))[-1]
    assert axis in line
    assert set(line) <= set("▔╹▲▼✖+sm0123456789")


def test_nothing_is_drawn_for_no_clients() -> None:
    history = History()
    for number, clients in enumerate((80.0, 80.0, 0.0, 0.0, 1.0)):
        history.add(Point(Flow(10.0, reaches=10.0), clients=clients), 1000.0 + number)
    line = drawn(history, height=8)[-1]
    assert line.startswith("clients")
    bars = line[7 : 7 + CELLS]
    assert set(bars) == set(" █▁")
    assert bars.strip().count(" ") * 2 >= bars.count("█"), "two seconds of five"


def test_bits_keep_the_parts_and_change_the_scale() -> None:
    flood = Flow(1000.0, mine=500.0, reaches=500.0, bps=8e6)
    packets, octets = drawn(history_of(flood)), drawn(history_of(flood), unit="bits")
    assert "1k▔" in packets[0]
    assert " 10M▔" in octets[0]
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
    ("rows", "height"),
    [(1, 0), (19, 0), (20, 5), (24, 5), (30, 7), (39, 7), (40, 8), (50, 10), (120, 10)],
)
def test_graph_takes_no_more_than_its_share_of_the_terminal(rows: int, height: int) -> None:
    assert graph_height(rows) == height


@given(st.lists(FLOW, max_size=30), st.integers(-5, 400), st.integers(0, 12), st.sampled_from(UNITS))
@settings(deadline=None, max_examples=60)
def test_any_history_fits_any_box(flows: list[Flow], width: int, height: int, unit: Unit) -> None:
    history = history_of(*flows)
    log = [entry(990.0, EventKind.RULE_APPLIED, "9"), entry(1002.0, EventKind.RULE_UNDONE, "9")]
    lines = graph_lines(history, log, width, height, unit=unit)
    assert len(lines) in (0, height)
    assert all(width_of(line) == width for line in lines)


async def test_graph_is_redrawn_at_most_once_a_second() -> None:
    async with running(snapshot()) as run:
        graph = run.app.main.bars._lines["graph"]
        before = graph._strips
        assert before
        run.clock[0] += 0.5
        await run.send(snapshot())
        assert graph._strips is before
        run.clock[0] += 0.5
        await run.send(snapshot())
        assert graph._strips is not before


async def test_history_stays_bounded_and_rules_are_marked_on_the_screen() -> None:
    async with running(calm()) as run:
        for _ in range(20):
            run.clock[0] += 100
            run.app.main.take(calm())
        bars = run.app.main.bars
        assert len(bars.history.points) == HISTORY_SECONDS / STEP
        bars.graph.seconds = 10
        await run.send(later(trial(), 2000))
        assert "8▲" in run.text()
        assert colours(bars.history) >= {"green"}, "the rule drops it"
        run.clock[0] += 10
        await run.send(later(snapshot(), 2010))
        assert "8✖" in run.text(), "its trial ended meanwhile"
        assert colours(bars.history) >= {"red", "cyan"}


def colours(history: History) -> set[str]:
    lines = graph_lines(history, (), 80, 3, unit="packets")
    return {style.color.name for line in lines for _, style in line if style.color is not None}


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
        assert len(points) == 601, "each second was two points, the last is now"
        assert points[0].flow == flood
        assert not points[-1].attack
        await run.send(snapshot())
        assert run.app.main.bars.history.points[0].flow == flood
