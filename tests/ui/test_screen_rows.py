"""Selection and order of rows while the list moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from screen_parts import NOW, few_addresses

from fwtop.model.traffic.session import Flow
from fwtop.model.traffic.snapshot import Source
from fwtop.ui.format import bar, bits, cut, duration, nanoseconds, number, percent, wrap
from fwtop.ui.layout import frame
from fwtop.ui.lists.history import HISTORY_SECONDS, STEP, History, Point
from fwtop.ui.lists.rows import FREEZE_SECONDS, RESORT_SECONDS, SEEN_SECONDS, RowList
from fwtop.ui.lists.traffic import SOURCE_VIEWS
from fwtop.ui.style import TEXT, width_of, wrap_line
from fwtop.ui.tabs import TABS, Content, TabSpec

ROWS = few_addresses(6)


def rows(items: tuple[Source, ...] = ROWS) -> RowList:
    made = RowList(SOURCE_VIEWS[0].row)
    made.update(items, NOW)
    return made


def keys(made: RowList) -> list[str]:
    return [made.row.key(item) for item in made.items]


def test_untouched_selection_follows_the_greatest() -> None:
    made = rows()
    made.update(ROWS[::-1], NOW + RESORT_SECONDS)
    assert made.current() is ROWS[5]


def test_rows_change_places_at_most_every_three_seconds() -> None:
    made = rows()
    made.update(ROWS[::-1], NOW + RESORT_SECONDS - 0.1)
    assert keys(made) == keys(rows())
    made.update(ROWS[::-1], NOW + RESORT_SECONDS)
    assert keys(made) == keys(rows())[::-1]


def test_action_applies_to_the_row_that_was_seen() -> None:
    made = rows()
    made.update(ROWS[::-1], NOW + RESORT_SECONDS)
    assert made.target(NOW + RESORT_SECONDS + 0.1) is ROWS[0], "the change came too late to be seen"
    assert made.current() is ROWS[0], "and it stays selected"
    later = rows()
    later.update(ROWS[::-1], NOW + RESORT_SECONDS)
    assert later.target(NOW + RESORT_SECONDS + 2 * SEEN_SECONDS) is ROWS[5]


def test_selected_key_stays_selected_when_rows_move() -> None:
    made = rows()
    made.select(2, NOW)
    made.update(ROWS[::-1], NOW + FREEZE_SECONDS + 1)
    assert made.current() is ROWS[2]
    assert made.selected == 3


def test_rows_hold_still_for_a_moment_after_a_key_press() -> None:
    made = rows()
    made.select(1, NOW)
    made.update(ROWS[::-1], NOW + FREEZE_SECONDS - 0.1)
    assert keys(made) == [row.key for row in ROWS]
    made.update(ROWS[::-1], NOW + FREEZE_SECONDS)
    assert keys(made) == [row.key for row in ROWS[::-1]]


def test_new_rows_come_below_while_rows_hold_still() -> None:
    made = rows(ROWS[2:])
    made.select(0, NOW)
    made.update(ROWS, NOW + 1)
    assert keys(made) == [row.key for row in (*ROWS[2:], *ROWS[:2])]


def test_selected_row_with_a_number_stays_only_while_a_key_was_just_pressed() -> None:
    made = rows()
    made.numbered = True
    made.select(1, NOW)
    made.update((ROWS[0], *ROWS[2:]), NOW + 2)
    assert made.current() is ROWS[1]
    made.update((ROWS[0], *ROWS[2:]), NOW + 4)
    assert keys(made) == [row.key for row in (ROWS[0], *ROWS[2:])]


def test_selected_row_that_vanished_leaves_after_half_a_minute_without_a_key() -> None:
    made = rows()
    made.select(1, NOW)
    others = (ROWS[0], *ROWS[2:])
    for later in (10, 39):
        made.update(others, NOW + later)
        assert made.current() is ROWS[1]
    made.freeze(NOW + 39)
    made.update(others, NOW + 41)
    assert made.current() is ROWS[1]  # a key was just pressed
    made.update(others, NOW + 43)
    assert keys(made) == [row.key for row in others]
    assert made.current() is ROWS[0]
    assert made.target(NOW + 43.2) is ROWS[1]  # what was seen when the key was pressed
    made.update((), NOW + 80)
    made.update((), NOW + 120)
    assert made.current() is None


def test_selected_row_that_vanishes_stays_until_the_selection_moves() -> None:
    made = rows()
    made.select(1, NOW)
    made.update((ROWS[0], *ROWS[2:]), NOW + 10)
    assert made.current() is ROWS[1]
    assert made.gone
    made.select(0, NOW + 10)
    made.update((ROWS[0], *ROWS[2:]), NOW + 20)
    assert ROWS[1].key not in keys(made)
    assert not made.gone


def test_filter_counts_what_it_hides() -> None:
    made = rows()
    made.filter = "beispiel"
    made.update(ROWS, NOW)
    assert [row.as_name for row in made.items if isinstance(row, Source)] == ["Beispiel Netze GmbH"]
    assert made.hidden == 5


def test_sort_orders_cycle_back_to_the_lists_own() -> None:
    made = rows()
    names = [made.next_sort() for _ in range(5)]
    assert names == ["dropped", "bytes", "name", "who", ""]


def test_empty_list_has_no_selection() -> None:
    made = rows(())
    made.select(3, NOW)
    assert made.current() is None


def test_numbers_keep_three_digits_and_five_cells() -> None:
    cases = {
        0: "0",
        7: "7",
        0.5: "0.5",
        843.4: "843",
        999.6: "1.00k",
        1234: "1.23k",
        99_950: "100k",
        9_840_000: "9.84M",
    }
    assert {value: number(value) for value in cases} == cases
    assert all(len(number(10.0**power * 9.996)) <= 5 for power in range(17))


def test_shares_are_never_rounded_to_none_or_all() -> None:
    assert [percent(value) for value in (0, 0.0001, 0.5, 0.9999, 1)] == [
        "0 %",
        "<0.1 %",
        "50.0 %",
        ">99.9 %",
        "100 %",
    ]


def test_units_and_spans() -> None:
    assert bits(224_640_000) == "225 Mbit/s"
    assert bits(12) == "12 bit/s"
    assert [duration(value) for value in (-3, 59.9, 190, 7500, 367_200)] == [
        "0 s",
        "59 s",
        "3m10s",
        "2h05m",
        "4d06h",
    ]
    assert cut("abcdef", 4) == "abc…"
    assert wrap("one two threeandmore", 6) == ["one", "two", "threea", "ndmore"]


def test_bars_show_the_interval_and_stay_in_their_width() -> None:
    assert bar(0.5, 0.5, 0.5, scale=1.0, width=10) == ("━━━━━", "")
    assert bar(0.5, 0.3, 0.7, scale=1.0, width=10) == ("━━━", "┄┄┄┄")
    for part in (0.0, 0.001, 0.2, 0.999, 1.0, 1.7):
        sure, maybe = bar(part, part - 0.2, part + 0.2, scale=1.0, width=8)
        assert len(sure) + len(maybe) <= 8
    assert bar(0.0001, 0.0001, 0.0001, scale=1.0, width=8)[0], "something is never drawn as nothing"


def test_history_repeats_what_it_missed_keeps_peaks_and_stays_bounded() -> None:
    history = History()
    for second, rate in ((0.0, 5.0), (0.3, 9.0), (0.4, 7.0), (1.6, 1.0)):
        history.add(Point(Flow(rate)), second)
    assert [point.flow.arrives for point in history.points] == [9.0, 9.0, 9.0, 1.0]
    history.add(Point(Flow(2.0)), 1e6)
    assert len(history.points) == HISTORY_SECONDS / STEP


CONTENTS = (
    Content(),
    Content(1, 4),
    Content(2, 9, 3, 3, 12),
    Content(12, 30, 40, 40, 12),
    Content(0, 0, 1, 1, 5),
)


@pytest.mark.parametrize("tab", TABS, ids=lambda tab: tab.name)
@pytest.mark.parametrize("content", CONTENTS)
def test_every_layout_is_without_overlap(tab: TabSpec, content: Content) -> None:
    for width in range(60, 230, 13):
        for height in range(15, 70, 5):
            around = frame(width, height, tab.name)
            assert around is not None
            arrangement = tab.arrange(around.room, content)
            taken = np.zeros((height, width), np.bool_)
            for box in (*around.boxes.values(), *arrangement.boxes.values()):
                assert box.width > 0
                assert box.height > 0
                assert box.x + box.width <= width
                assert box.y + box.height <= height
                cells = taken[box.y : box.y + box.height, box.x : box.x + box.width]
                assert cells.shape == (box.height, box.width)
                assert not cells.any()
                cells[:] = True
            assert set(arrangement.boxes) & set(tab.panels), "something can be selected"


def test_below_the_minimum_there_is_no_layout() -> None:
    assert frame(59, 40, "overview") is None
    assert frame(100, 14, "overview") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(105.2, "105 ns"), (999.4, "999 ns"), (999.6, "1.0 µs"), (1370, "1.4 µs"), (9951, "10 µs")],
)
def test_costs_fit_their_column(value, text):
    assert nanoseconds(value) == text


@given(st.lists(st.text(alphabet="ab c", max_size=20), max_size=4), st.integers(1, 12))
def test_wrapped_rows_fit_and_lose_no_letter(texts: list[str], width: int) -> None:
    rows = wrap_line([(text, TEXT) for text in texts], width)
    assert all(width_of(row) <= width for row in rows)
    kept = "".join(text for row in rows for text, _ in row).replace(" ", "")
    assert kept == "".join(texts).replace(" ", "")
