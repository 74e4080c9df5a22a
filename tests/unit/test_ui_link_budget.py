"""In no ten seconds does a slow link get more than 3 KiB a second, and lists come as soon as they fit."""

from __future__ import annotations

import pytest

from fwtop.ui.updates import LinkBudget

LARGE, SMALL = 200 * 50, 80 * 24


@pytest.mark.parametrize(("cells", "size"), [(LARGE, 13_000), (SMALL, 2_500)])
def test_lists_fill_the_link_and_no_more(cells: int, size: int) -> None:
    budget, sent, log = LinkBudget(), 19_000, [(0.0, 0)]  # a first picture at once
    budget.note(0.0, 0)
    for second in range(1, 61):
        sent += 350  # bars
        log.append((float(second), sent))
        budget.note(second, sent)
        if budget.has_room(cells):
            sent += size
    assert all(
        later - earlier <= 30 * 1024
        for at, earlier in log
        for end, later in log
        if end - at <= 10.0
    )  # fmt: skip
    lists = (sent - 19_000 - 60 * 350) // size
    assert lists >= 60 * 2_000 // size // 2


def test_a_huge_terminal_gets_its_lists_and_a_clock_set_back_stops_none() -> None:
    budget = LinkBudget()
    assert budget.has_room(LARGE)
    budget.note(100.0, 0)
    budget.note(101.0, 20_000)
    assert not budget.has_room(LARGE)
    budget.note(50.0, 20_000)
    assert budget.has_room(LARGE * 10)
