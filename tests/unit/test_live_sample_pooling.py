"""Samples are pooled until the windows have seen their share of the traffic."""

from __future__ import annotations

import numpy as np
import pytest

from fwtop.live.scaling import LONGEST_SECONDS, SamplePool


def test_without_pauses_samples_are_released_at_once() -> None:
    records, factor = SamplePool().add(np.arange(7), seen=700, arrived=700, share=1.0, seconds=0.25)
    assert (records.tolist(), factor) == (list(range(7)), 1.0)


def test_samples_of_a_windows_beginning_wait_for_its_rest() -> None:
    pool = SamplePool()
    first, _ = pool.add(np.arange(3), seen=30, arrived=20_000, share=0.2, seconds=0.1)
    assert len(first) == 0
    both, factor = pool.add(np.arange(3, 300), seen=5970, arrived=10_000, share=0.2, seconds=0.1)
    assert both.tolist() == list(range(300))
    assert factor == pytest.approx(30_000 / 6000)
    after, factor = pool.add(np.arange(9), seen=900, arrived=900, share=1.0, seconds=0.1)
    assert (len(after), factor) == (9, 1.0)


def test_weights_sum_up_to_the_arrivals_and_vary_little() -> None:
    """Windows of 15 ms at random intervals, polls each 100 ms: weights used to differ 200-fold."""
    chance = np.random.default_rng(5)
    pool, share, rate = SamplePool(), 0.15, 300_000
    total, arrived_total, factors = 0.0, 0, []
    opens = np.cumsum(chance.uniform(0.6, 1.4, 400) * 0.1)
    for tick in range(300):
        low, high = tick * 0.1, (tick + 1) * 0.1
        watched = np.clip(np.minimum(opens + 0.015, high) - np.maximum(opens, low), 0, None).sum()
        seen, arrived = round(watched * rate), round(0.1 * rate)
        arrived_total += arrived
        out, factor = pool.add(np.zeros(seen // 7), seen=seen, arrived=arrived, share=share, seconds=0.1)
        if len(out):
            total += len(out) * 7 * factor
            factors.append(factor)
    assert total == pytest.approx(arrived_total, rel=0.01)
    assert max(factors) <= 2 / share + 0.1


def test_samples_wait_no_longer_than_the_limit() -> None:
    pool = SamplePool()
    waited = 0.0
    while not len(pool.add(np.arange(2), seen=1, arrived=50_000, share=0.2, seconds=0.1)[0]):
        waited += 0.1
    assert LONGEST_SECONDS - 0.2 <= waited <= LONGEST_SECONDS


def test_weights_are_bounded_and_later_samples_stand_for_the_rest() -> None:
    pool, share = SamplePool(), 0.2
    for _ in range(6):
        few, factor = pool.add(np.arange(1), seen=100, arrived=100_000, share=share, seconds=0.1)
    assert (len(few), factor) == (6, pytest.approx(15.0))
    carried = 600_000 - 600 * 15
    rest, factor = pool.add(np.arange(400), seen=80_000, arrived=100_000, share=share, seconds=0.1)
    assert len(rest) == 400
    assert 80_000 * factor == pytest.approx(carried + 100_000)


def test_samples_after_an_attack_do_not_stand_for_it() -> None:
    pool = SamplePool()
    for _ in range(6):
        pool.add(np.arange(1), seen=100, arrived=100_000, share=0.2, seconds=0.1)
    calm, factor = pool.add(np.arange(50), seen=50, arrived=50, share=1.0, seconds=0.1)
    assert (len(calm), factor) == (50, 1.0)


def test_without_samples_none_are_released() -> None:
    pool = SamplePool()
    for _ in range(20):
        records, factor = pool.add(np.arange(0), seen=0, arrived=50_000, share=0.2, seconds=0.1)
        assert (len(records), factor) == (0, 1.0)
    records, factor = pool.add(np.arange(50), seen=100_000, arrived=50_000, share=0.2, seconds=0.1)
    assert (len(records), factor) == (50, 10.5)
