"""Only the cells that changed are sent, and what the terminal then shows is the new picture."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console, RenderableType
from screen_factory import provisional, snapshot
from screen_run import LARGE, SMALL, running
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.screen import Screen
from textual.strip import Strip

from fwtop.ui.style import BAD, DIM, TEXT, Line, changed_cells, strip_of
from fwtop.ui.updates import ExactUpdate, ShownCells

WIDTH = 30
CONSOLE = Console(force_terminal=True, color_system="standard", width=WIDTH)
SPAN = st.tuples(st.text("ab 1─", max_size=12), st.sampled_from((TEXT, DIM, BAD)))
LINE = st.lists(SPAN, max_size=5)


def apply(rows: list[list[str]], sent: str) -> None:
    """Do to rows of cells what a terminal does with cursor movements, colours and text."""
    y = x = 0
    for move, _, text in re.findall(r"\x1b\[(\d+;\d+)H|(\x1b\[[\d;]*m)|([^\x1b])", sent):
        if move:
            y, x = (int(part) - 1 for part in move.split(";"))
        elif text:
            rows[y][x] = text
            x += 1


def update(old: Strip, new: Strip) -> ExactUpdate:
    spans = [(0, start, end) for start, end in changed_cells(old, new)]
    return ExactUpdate.of(ChopsUpdate([{0: new}], spans, [[WIDTH]]), ShownCells())


@given(LINE, LINE)
def test_a_partial_update_turns_the_old_line_into_the_new_one(before: Line, after: Line) -> None:
    old, new = strip_of(before, WIDTH), strip_of(after, WIDTH)
    rows = [list(old.text)]
    apply(rows, update(old, new).render_segments(CONSOLE))
    assert "".join(rows[0]) == new.text
    assert changed_cells(new, new) == []


@given(LINE, LINE)
def test_styles_that_changed_are_sent_too(before: Line, after: Line) -> None:
    old, new = strip_of(before, WIDTH), strip_of(after, WIDTH)
    parts = changed_cells(old, new)
    for place in range(WIDTH):
        was, is_ = old.crop(place, place + 1), new.crop(place, place + 1)
        if list(was) != list(is_):
            assert any(start <= place < end for start, end in parts)


def test_what_stays_between_two_figures_is_not_sent() -> None:
    old, new = (
        strip_of([(f"{rate}  network           {share}", TEXT)], WIDTH) for rate, share in ("12", "34")
    )
    sent = update(old, new).render_segments(CONSOLE)
    assert "network" not in sent
    assert changed_cells(old, new) == [(0, 1), (21, 22)]


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_a_terminal_shows_what_the_screen_holds_after_every_update(size: tuple[int, int]) -> None:
    async with running(snapshot(), size) as run:
        rows = [list(line) for line in run.lines()]
        shown = ShownCells()

        def display(_: object, renderable: object) -> None:
            if isinstance(renderable, ChopsUpdate):
                apply(rows, ExactUpdate.of(renderable, shown).render_segments(CONSOLE))
            elif isinstance(renderable, LayoutUpdate):
                shown.note(renderable)
                rows[:] = [list(line) for line in run.lines()]

        run.app._display = display  # type: ignore[method-assign]
        base = snapshot()
        for factor in (1.1, 0.97, 3.0):
            totals = replace(base.tables.totals, pps=base.tables.totals.pps * factor)
            await run.send(replace(base, tables=replace(base.tables, totals=totals)))
            run.clock[0] += 2
            await run.press("down")
            assert ["".join(row) for row in rows] == run.lines()
        await run.send(provisional())
        await run.press("right_square_bracket", "down", "v", "left_square_bracket", "down")
        assert ["".join(row) for row in rows] == run.lines()


async def test_a_change_of_tab_sends_no_cell_that_is_shown_already() -> None:
    """Textual repaints widgets that come and go whole, and what they hold once more: 20 KB at 200×50."""
    async with running(snapshot(), LARGE, slow=True) as run:
        shown = ShownCells()
        sent: list[str] = []

        def display(_: object, renderable: object) -> None:
            if isinstance(renderable, ChopsUpdate):
                sent.append(ExactUpdate.of(renderable, shown).render_segments(CONSOLE))
            elif isinstance(renderable, LayoutUpdate):
                shown.note(renderable)

        run.app._display = display  # type: ignore[method-assign]
        run.app.action_send_again()
        for tab in ("traffic", "path", "rules", "overview"):
            before = run.lines()
            sent.clear()
            await run.press("right_square_bracket")
            while run.app.main.tabs.shown.name != tab:
                before = run.lines()
                sent.clear()
                await run.press("right_square_bracket")
            after = run.lines()
            cells = zip("".join(before), "".join(after), strict=True)
            changed = sum(was != is_ for was, is_ in cells)
            assert changed > 300
            assert sum(map(len, sent)) < 5 * changed + 1_000


async def test_a_resize_to_the_same_size_and_ctrl_l_send_a_whole_frame() -> None:
    """Shrunk and grown again before the program looks, a terminal has lost cells, figures or no."""
    async with running(snapshot()) as run:
        sent: list[object] = []
        display = run.app._display

        def seen(screen: Screen[Any], update: RenderableType | None) -> None:
            sent.append(update)
            display(screen, update)

        run.app._display = seen  # type: ignore[method-assign]
        run.app.post_message(events.Resize(run.app.size, run.app.size))
        await run.until(lambda: any(isinstance(update, LayoutUpdate) for update in sent))
        assert next(update for update in sent if isinstance(update, LayoutUpdate)).region.size == run.app.size
        for before in ("down", "question_mark"):  # which opens a dialog
            await run.press(before)
            sent.clear()
            await run.press("ctrl+l")
            assert any(isinstance(update, LayoutUpdate) for update in sent)
