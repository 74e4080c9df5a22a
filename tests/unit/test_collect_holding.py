"""Samples of short windows wait until the windows have seen their share of what arrived."""

from __future__ import annotations

import numpy as np
import pytest

from fwtop.collect.holding import LONGEST_SECONDS, HeldSamples


def test_everything_goes_on_at_once_where_everything_is_watched() -> None:
    records, factor = HeldSamples().add(np.arange(7), seen=700, arrived=700, duty=1.0, seconds=0.25)
    assert (records.tolist(), factor) == (list(range(7)), 1.0)


def test_the_beginning_of_a_window_waits_for_its_rest() -> None:
    held = HeldSamples()
    first, _ = held.add(np.arange(3), seen=30, arrived=20_000, duty=0.2, seconds=0.1)
    assert len(first) == 0
    both, factor = held.add(np.arange(3, 300), seen=5970, arrived=10_000, duty=0.2, seconds=0.1)
    assert both.tolist() == list(range(300))
    assert factor == pytest.approx(30_000 / 6000)
    after, factor = held.add(np.arange(9), seen=900, arrived=900, duty=1.0, seconds=0.1)
    assert (len(after), factor) == (9, 1.0)


def test_weights_add_up_to_what_arrived_and_are_of_one_order() -> None:
    """Windows of 15 ms at random distances, readings of 100 ms: what came out before were 200-fold steps."""
    chance = np.random.default_rng(5)
    held, duty, rate = HeldSamples(), 0.15, 300_000
    total, arrived_in_all, factors = 0.0, 0, []
    opens = np.cumsum(chance.uniform(0.6, 1.4, 400) * 0.1)
    for tick in range(300):
        low, high = tick * 0.1, (tick + 1) * 0.1
        watched = np.clip(np.minimum(opens + 0.015, high) - np.maximum(opens, low), 0, None).sum()
        seen, arrived = round(watched * rate), round(0.1 * rate)
        arrived_in_all += arrived
        out, factor = held.add(np.zeros(seen // 7), seen=seen, arrived=arrived, duty=duty, seconds=0.1)
        if len(out):
            total += len(out) * 7 * factor
            factors.append(factor)
    assert total == pytest.approx(arrived_in_all, rel=0.01)
    assert max(factors) <= 2 / duty + 0.1


def test_they_do_not_wait_for_ever() -> None:
    held = HeldSamples()
    waited = 0.0
    while not len(held.add(np.arange(2), seen=1, arrived=50_000, duty=0.2, seconds=0.1)[0]):
        waited += 0.1
    assert LONGEST_SECONDS - 0.2 <= waited <= LONGEST_SECONDS


def test_a_few_samples_stand_for_no_more_than_a_few_times_the_usual_and_the_next_for_the_rest() -> None:
    held, duty = HeldSamples(), 0.2
    for _ in range(6):
        few, factor = held.add(np.arange(1), seen=100, arrived=100_000, duty=duty, seconds=0.1)
    assert (len(few), factor) == (6, pytest.approx(15.0))
    owed = 600_000 - 600 * 15
    rest, factor = held.add(np.arange(400), seen=80_000, arrived=100_000, duty=duty, seconds=0.1)
    assert len(rest) == 400
    assert 80_000 * factor == pytest.approx(owed + 100_000)


def test_a_calm_does_not_stand_for_the_attack_before_it() -> None:
    held = HeldSamples()
    for _ in range(6):
        held.add(np.arange(1), seen=100, arrived=100_000, duty=0.2, seconds=0.1)
    calm, factor = held.add(np.arange(50), seen=50, arrived=50, duty=1.0, seconds=0.1)
    assert (len(calm), factor) == (50, 1.0)


def test_without_a_sample_nothing_is_made_up() -> None:
    held = HeldSamples()
    for _ in range(20):
        records, factor = held.add(np.arange(0), seen=0, arrived=50_000, duty=0.2, seconds=0.1)
        assert (len(records), factor) == (0, 1.0)
    records, factor = held.add(np.arange(50), seen=100_000, arrived=50_000, duty=0.2, seconds=0.1)
    assert (len(records), factor) == (50, 10.5)
