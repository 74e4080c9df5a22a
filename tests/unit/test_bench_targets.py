"""The table of accuracy says which targets are met."""

from __future__ import annotations

import pytest

from benches.tables.scenarios import TARGETS
from fwtop.bench.frame import Result
from fwtop.bench.tables.accuracy import against_targets


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("A2 95 % intervals that cover the truth (91 rows)", (0.9,), "target 0.93 to 0.97, missed by 0.9"),
        ("A3 unexplained", (0.0, 0.004), "target 0 to 0.005, met by 0.004"),
        ("A4 attacks named rightly", (1.0, 0.95), "target at least 0.95, met by 0.975"),
        ("A4 false alarms on clean traffic", (0.0, 1.0), "target 0 to 0, missed by 1"),
    ],
)
def test_a_row_is_held_against_its_target(name: str, values: tuple[float, ...], line: str) -> None:
    assert against_targets([Result(name, "share", values)]) == [f"{name}: {line}"]


def test_scenarios_have_further_targets() -> None:
    row = Result("A6 attack packets that the signatures match", "share", (1.0, 0.9))
    assert against_targets([row], TARGETS) == [f"{row.name}: target at least 0.95, missed by 0.9"]


def test_a_row_without_a_target_is_left_alone() -> None:
    assert against_targets([Result("A4 attacks' shares, difference", "points", (3.0,))]) == []
