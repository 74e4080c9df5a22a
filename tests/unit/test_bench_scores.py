from __future__ import annotations

import pytest

from benches.accuracy.scenarios import Signature, matched
from fwtop.bench import cases
from fwtop.bench.cases import Interval

TRUE = {"a": 100, "b": 50, "c": 50, "d": 1}


def test_recall_counts_misses_and_treats_ties_as_equal() -> None:
    assert cases.strict_recall(TRUE, ["a", "c", "d"], top=2).found == 2  # b and c are equal
    missing = cases.strict_recall(TRUE, ["a", "d", "b"], top=2)
    assert (missing.found, missing.wanted) == (1, 2)
    assert set(missing.missed) <= {"b", "c"}
    assert cases.strict_recall({}, ["a"]).wanted == 0


def test_recall_respects_the_resolution_of_sampling() -> None:
    true = {"a": 1000, "b": 990, "c": 1}
    assert cases.top_recall(true, ["b"], 20.0, top=1).found == 1
    assert cases.top_recall(true, ["b"], 1.0, top=1).found == 0
    assert cases.top_recall(true, ["c"], 20.0, top=1).found == 0
    assert cases.top_recall({"a": 150, "b": 3}, [], 20.0).wanted == 0  # 8 samples at most


def test_coverage_is_the_share_of_intervals_that_hold_the_truth() -> None:
    inside, outside = Interval("in", 0.1, 0.3, 0.2), Interval("out", 0.1, 0.3, 0.31)
    assert cases.coverage([inside, outside, inside, inside]) == 0.75
    assert cases.coverage([outside], slack=0.02) == 1.0
    assert cases.coverage([]) is None
    assert not inside.is_exact
    assert Interval("exact", 0.25, 0.25, 0.25).is_exact


@pytest.mark.parametrize(
    ("expected", "seen", "score"),
    [
        (["syn_flood"], ["syn_flood"], 1.0),
        (["syn_flood", "udp_flood"], ["syn_flood"], 0.5),
        (["syn_flood"], ["syn_flood", "ack_flood"], 0.5),
        ([], [], 1.0),
        ([], ["udp_flood"], 0.0),
    ],
)
def test_naming_is_scored_down_for_misses_and_extra_names(
    expected: list[str], seen: list[str], score: float
) -> None:
    assert cases.named_rightly(expected, seen) == score


def test_relative_difference() -> None:
    assert cases.relative_difference(99, 100) == 0.01
    assert cases.relative_difference(0, 0) == 0.0
    assert cases.relative_difference(1, 0) == 1.0


def test_signatures_match_at_their_offset_or_anywhere() -> None:
    payloads = [b"xxATTACK", b"ATTACKxx", b"nothing"]
    assert matched([Signature(b"ATTACK", 2)], payloads) == pytest.approx(1 / 3)
    assert matched([Signature(b"ATTACK", None)], payloads) == pytest.approx(2 / 3)
    assert matched([], payloads) == 0.0
    assert matched([Signature(b"a", None)], []) == 0.0
