"""Any size from 1×1 to 400×120, in any state, costs a bounded number of steps and bytes."""

from __future__ import annotations

import cProfile
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import SCENES as MADE
from screen_factory import provisional, snapshot
from screen_fakes import FakeFeed, FakePlayer
from screen_hostile import HostileControls, hostile
from screen_packets import flood
from screen_run import Run, running
from screen_vectors import vectors

from fwtop.model.rule import PlanView
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.ui.actions.dialog import Dialog
from fwtop.ui.actions.rule_dialog import RuleDialog
from fwtop.ui.bars import pending
from fwtop.ui.format import wrap
from fwtop.ui.layout import MOST_GRAPH, Lines, frame
from fwtop.ui.tabs import TABS

STATES: dict[str, tuple[str, tuple[str, ...]]] = {  # the panel that has the keys, and keys
    "as it opens": ("", ()),
    **{name: (name, ("down",)) for tab in TABS for name in tab.panels},
    "stage": ("path", ("down", "enter")),
    "only one attack": ("attacks", ("enter",)),
    "last proposal": ("proposals", ("end",)),
    "filter": ("sources", ("slash", "2")),
    "rule details": ("all_rules", ("enter",)),
    "dialog": ("sources", ("b",)),
    "dialog, editing": ("sources", ("b", "up", "1")),
    "details": ("sources", ("enter",)),
    "evidence": ("", ("a",)),
    "help": ("", ("question_mark",)),
    "combined set": ("", ("A",)),
    "set, armed": ("", ("A", "enter")),
    "views": ("sources", ("v",) * 6),
    "into a prefix": ("sources", ("v", "enter")),
    "held packets": ("packets", ("up", "up")),
    "packet filter, wrong": ("packets", ("slash", *"port ==", "enter")),
    "scoped": ("attacks", ("enter", "right_square_bracket")),
    "choice": ("", ("plus",)),
    "leaving": ("", ("q",)),
    "command": ("", (":", "tab", "shift+tab")),
    "command, wrong": ("", (":", *"block x", "enter")),
}
MOST_STEPS = 2_000_000  # calls of functions for one resize; a large screen takes some 100,000
MOST_LINES = 100_000
LONG = tuple(f"ipset add fwtop-4 198.51.{n // 256}.{n % 256} timeout 632 comment 'x'" for n in range(400))


class TooManySteps(AssertionError):
    """The screen does more than it can need to: it probably loops."""


@contextmanager
def bounded_steps(most: int) -> Iterator[None]:
    """Count calls of Python and C functions and fail beyond a bound; a loop that calls nothing can't grow.

    The counting is cProfile's; every tenth of a second of CPU time the count is looked at, to end a loop.
    """
    profile = cProfile.Profile()
    looking = False

    def check(*_: object) -> None:
        # Without getstats' work being counted: the handler runs in the profiled thread, and on a busy machine
        # the next signal comes before it is done.
        nonlocal looking
        if looking:
            return
        looking = True
        profile.disable()
        steps = sum(entry.callcount for entry in profile.getstats())
        if steps > most:
            raise TooManySteps(f"{steps:,} calls, more than {most:,}")
        profile.enable()
        looking = False

    before = signal.signal(signal.SIGVTALRM, check)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.1, 0.1)
    profile.enable()
    try:
        yield
        check()
    finally:  # the last: a signal would enable it again, and Python 3.13 has one profiler at a time
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        profile.disable()


async def resize(run: Run, width: int, height: int) -> None:
    with bounded_steps(MOST_STEPS):
        await run.pilot.resize_terminal(width, height)
        await run.settle()


def held_lines(run: Run) -> int:
    return sum(len(frame._strips) for screen in run.app.screen_stack for frame in screen.query(Lines))


def assert_keys_refer_to_something_visible(run: Run) -> None:
    main = run.app.main
    if frame(*run.app.size, main.tabs.shown.name) is None:
        assert not any(panel.display for panel in main.tabs.panels.values())
        return
    assert main.tabs.panel.display
    assert main.tabs.panel.active
    assert sum(panel.active for panel in main.tabs.panels.values()) == 1


SIZE = st.tuples(st.integers(1, 400), st.integers(1, 120))
TIGHT = st.tuples(st.integers(1, 30), st.integers(1, 14))


SCENES: dict[str, Callable[[], Snapshot]] = {
    "provisional": provisional,
    "vectors": lambda: vectors(snapshot()),
    "hostile": hostile,
    "recording": lambda: snapshot(origin=Origin("session", ("eth0",), None, "2026-09-21T14-13-20-eth0")),
}


def feed_of(scene: str) -> FakeFeed:
    """Return a feed for a scene: with long plans, packets, and a player for a recording."""
    feed = FakeFeed()
    if scene == "hostile":
        feed.controls = HostileControls()
    else:
        feed.controls.plan_answer = PlanView(LONG, ("another rule does most of this already",))
        feed.controls.recent = flood(200)
    feed.player = FakePlayer() if scene == "recording" else None
    return feed


TRIED = [
    ("provisional", "dialog", [(6, 24)]),
    ("provisional", "dialog", [(1, 1), (400, 120)]),
    ("vectors", "combined set", [(6, 24), (1, 1), (400, 120), (60, 15)]),
    ("hostile", "combined set", [(6, 24), (1, 1), (400, 120)]),
    ("provisional", "command", [(6, 24), (400, 120), (24, 8), (1, 1), (60, 15)]),
    ("provisional", "command, wrong", [(6, 24), (400, 120), (24, 8), (1, 1), (60, 15)]),
    ("provisional", "sources", [(200, 50), (80, 24), (60, 15)]),
    ("hostile", "packets", [(400, 120), (60, 15), (1, 1), (132, 34)]),
    ("recording", "as it opens", [(400, 120), (60, 15), (1, 1), (132, 34)]),
    ("provisional", "ports", [(400, 120), (60, 15), (1, 1), (132, 34)]),
    ("provisional", "conntrack", [(200, 50), (60, 15)]),
]


@pytest.mark.one_each("0", "3", "4", "8", "10")  # a dialog, the longest texts, a line, a player, a table
@pytest.mark.parametrize("number", range(len(TRIED)))
async def test_no_tried_size_costs_more_than_it_can_need(number: int) -> None:
    await check_sizes(*TRIED[number])


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(SCENES)),
    st.sampled_from(sorted(STATES)),
    st.lists(SIZE | TIGHT, min_size=1, max_size=4),
)
async def test_no_size_in_any_state_costs_more_than_it_can_need(
    scene: str, state: str, sizes: list[tuple[int, int]]
) -> None:
    await check_sizes(scene, state, sizes)


async def check_sizes(scene: str, state: str, sizes: list[tuple[int, int]]) -> None:
    """Check that each size in turn costs a bounded number of lines, and that all fits."""
    at, keys = STATES[state]
    async with running(SCENES[scene](), at=at, feed=feed_of(scene)) as run:
        await run.press(*keys)
        if run.app._exit:
            assert state == "leaving"
            assert scene == "recording" or not pending(SCENES[scene]().mitigations), "no rules to ask about"
            return
        for width, height in sizes:
            await resize(run, width, height)
            assert held_lines(run) < MOST_LINES
            for lines in run.app.screen.query(Lines):
                if lines.display:
                    assert lines.box.width <= width
                    assert lines.box.height <= height
            assert_keys_refer_to_something_visible(run)
        await resize(run, 80, 24)
        assert "loops" not in run.text()


@given(st.text(max_size=200), st.integers(-5, 40))
@settings(deadline=None)
def test_wrapped_lines_are_one_line_each_and_fit(text: str, width: int) -> None:
    with bounded_steps(20_000):
        rows = wrap(text, width)
    assert all(len(row) <= max(width, 1) and "\n" not in row and "\r" not in row for row in rows)
    assert len(rows) <= 2 * len(text) + 1


async def test_line_breaks_in_a_command_never_reach_the_terminal() -> None:
    base = snapshot()
    offers = list(base.judgement.proposals)
    script = "ipset restore <<EOF\n" + "\n".join(LONG[:40]) + "\nEOF\n"
    offers[0] = replace(offers[0], commands=(script,), summary="block\r\n\x1b[2J40 addresses")
    base = replace(base, judgement=replace(base.judgement, proposals=tuple(offers)))
    async with running(base) as run:
        await run.press("r")
        assert isinstance(run.app.screen, Dialog)
        shown = [strip.text for frame in run.app.screen.query(Lines) for strip in frame._strips]
        assert all(text.isprintable() for text in shown)
        assert len({len(text) for text in shown}) == 1, "the frame is whole"


@pytest.mark.parametrize("size", [(60, 15), (60, 10), (80, 15), (80, 12), (40, 9)])
async def test_small_dialog_shows_stops_harms_and_warnings_before_the_fields(size: tuple[int, int]) -> None:
    feed = FakeFeed()
    feed.controls.plan_answer = PlanView(LONG, ("cuts off 198.51.100.7",))
    async with running(snapshot(), at="ports", feed=feed) as run:
        await run.press("x")
        await resize(run, *size)
        shown = run.text()
        whole = ["Esc "] * (size[0] >= 80)
        for wanted in ("stops", "clients hit", "cuts off", "Install", "Cancel", *whole):
            assert wanted in shown, f"{wanted} at {size}:\n{shown}"


async def test_dialog_that_cannot_be_read_installs_nothing() -> None:
    async with running(snapshot()) as run:
        await run.press("b")
        assert isinstance(run.app.screen, RuleDialog)
        await resize(run, 12, 4)
        await run.press("enter")
        assert "apply" not in run.feed.controls.verbs()
        await resize(run, 80, 24)
        await run.press("enter")
        assert run.feed.controls.verbs()[-1] == "apply"


@pytest.mark.one_each
@pytest.mark.parametrize(("size", "rows"), [((80, 24), 4), ((100, 30), 5), ((120, 40), 6), ((200, 50), 8)])
@pytest.mark.parametrize("scene", ["calm", "spoofed", "trial", "vectors", "protected"])
async def test_the_graph_is_high_and_has_the_lines_that_nothing_else_needs(
    scene: str, size: tuple[int, int], rows: int
) -> None:
    async with running(MADE[scene](), size) as run:
        tabs, graph = run.app.main.tabs, run.app.main.bars.graph.box
        assert graph.height - 1 - any(line.startswith("clients") for line in run.lines()) >= rows
        shown = [widget.box for widget in (*tabs.panels.values(), *tabs.texts.values()) if widget.display]
        free = size[1] - 2 - max(box.y + box.height for box in shown)
        assert free <= 1 or graph.height == MOST_GRAPH
        funnel = tabs.texts["funnel"]
        assert funnel.display == (size == (200, 50)), "the path is beside the graph"
        if funnel.display:
            assert (funnel.box.y, funnel.box.height) == (graph.y, graph.height)
            assert funnel.box.x >= graph.x + graph.width
            assert all(word in run.text() for word in ("NIC", "XDP", "conntrack", "socket", "accepted"))


async def test_no_line_stays_empty_while_a_list_has_rows_that_are_not_shown() -> None:
    shot = MADE["vectors"]()
    rules = tuple(
        replace(shot.mitigations[0], rule=replace(shot.mitigations[0].rule, id=str(number)))
        for number in range(900, 904)
    )
    judgement = replace(shot.judgement, proposals=shot.judgement.proposals[-1:])
    async with running(replace(shot, mitigations=rules, judgement=judgement), (80, 24)) as run:
        boxes = [run.app.main.tabs.panels[name].box for name in ("attacks", "proposals", "rules")]
        assert boxes[0].height == 1 + len(judgement.attacks)
        assert boxes[-1].y + boxes[-1].height == 22
        assert "rule  1–2 of 4" in run.text()
