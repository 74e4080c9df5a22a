"""Idle shares and the processors to avoid, from the kernel's figures."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fwtop.kernel.procfs import parse_ticks
from fwtop.live import load
from fwtop.live.load import FULL, Processors, choose_avoided

STAT = """cpu  10 0 10 80 0 0 0 0 0 0
cpu0 5 0 5 30 10 0 0 0 0 0
cpu1 5 1 5 50 0 0 4 2 7 0
intr 1 2 3
"""


@pytest.fixture
def own_processors() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def test_iowait_counts_as_idle() -> None:
    assert [parse_ticks(STAT)[number][::2] for number in (0, 1)] == [(40, 50), (50, 67)]
    assert parse_ticks("cpu0 1 2\n") == {}


def test_idle_shares_cover_the_time_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter([STAT, STAT.replace("cpu0 5 0 5 30", "cpu0 5 0 20 35"), STAT])
    monkeypatch.setattr(load, "read_text", lambda path: next(texts))
    made = Processors()
    assert made.idle() == {0: 0.25}  # no tick of the other


def test_saturation_means_that_every_processor_is_full(
    monkeypatch: pytest.MonkeyPatch, own_processors: set[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    idle = [(0, 0), (2, 9), (3, 4), (18, 9), (20, 50)]  # of 100 ticks each, of two processors that we may use
    ticks = [0, 0]
    texts = []
    for number, shares in enumerate(idle):
        ticks = [before + share for before, share in zip(ticks, shares, strict=True)]
        rows = [f"cpu{cpu} 0 0 {100 * number - spare} {spare} 0 0 0 0" for cpu, spare in enumerate(ticks)]
        texts.append("\n".join([*rows, f"cpu2 0 0 0 {100 * number} 0 0 0 0"]))
    given = iter(texts)
    monkeypatch.setattr(load, "read_text", lambda path: next(given))
    made, told = Processors(), []
    for _ in idle[1:]:
        made.idle()
        told.append(made.cpu_saturated)
    assert told == [True, True, True, False]  # 18 % idle is not enough to end the saturation


def test_a_full_receiver_is_avoided_until_it_receives_little() -> None:
    busy, spare = {0: FULL - 0.1, 1: 0.9}, {0: 0.9, 1: 0.9}
    none: frozenset[int] = frozenset()
    assert choose_avoided([0.2, 0.001], busy, none) == {0}
    assert choose_avoided([0.2, 0.001], spare, none) == none
    assert choose_avoided([0.2, 0.001], spare, frozenset({0})) == {0}
    assert choose_avoided([0.005, 0.001], busy, frozenset({0})) == none
    assert choose_avoided([0.001, 0.001], {0: 0.0, 1: 0.0}, none) == none  # busy with something else


def test_this_process_moves_off_a_processor_and_back(own_processors: set[int]) -> None:
    if len(own_processors) < 2:
        pytest.skip("needs two processors")
    made, first = Processors(), min(own_processors)
    costs = [0.2 if number == first else 0.0 for number in range(max(own_processors) + 1)]
    made.avoid_receivers(costs, dict.fromkeys(own_processors, 0.0))
    assert os.sched_getaffinity(0) == own_processors - {first}
    made.avoid_receivers([0.2] * len(costs), dict.fromkeys(own_processors, 0.0))
    assert os.sched_getaffinity(0) == own_processors  # nowhere to go
    made.avoid_receivers([0.0] * len(costs), dict.fromkeys(own_processors, 1.0))
    assert os.sched_getaffinity(0) == own_processors
