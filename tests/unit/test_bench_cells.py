"""What the benches read of a screen: texts at absolute positions, cut into chunks anywhere."""

from __future__ import annotations

import pytest

from benches.screens import Cells
from benches.tables.walk import _rates

OUTPUT = (
    "\x1b[?1049h\x1b[2J\x1b]0;title\x07\x1b[1;1Hfirst\x1b[0;31m red\x1b[0m\r\nsecond"
    "\x1b[3;4H█漢e\u0301x\x1b[1;1HF\x1b(B"
).encode()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_texts_stand_where_they_were_put(size: int) -> None:
    cells = Cells(12, 3)
    for at in range(0, len(OUTPUT), size):
        cells.feed(OUTPUT[at : at + size])
    assert cells.lines() == ["First red", "second", "   █漢ex"]


def test_what_leaves_the_terminal_is_not_shown() -> None:
    cells = Cells(4, 2)
    cells.feed(b"\x1b[1;3Habcdef\x1b[9;9Hx\x1b[2;1Hy")
    assert cells.lines() == ["  ab", "y"]
    cells.feed(b"\x1b[2J")
    assert cells.lines() == ["", ""]


def test_rates_are_read_with_their_units() -> None:
    line = " 3 s: arrives 133k pps │ kernel 53 │ REACHES YOU 48.4k │ clients 106/s ▼5.3 %"
    assert _rates(line) == {"reaches you": 48_400.0, "clients": 106.0}
    assert _rates("waiting") == {}
