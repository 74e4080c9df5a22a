"""Counting in small arrays: the same as numpy's own functions, which are slower."""

from __future__ import annotations

import numpy as np
import pytest

from fwtop.analysis.window import counting, features
from fwtop.analysis.window.counting import (
    TABLE,
    among,
    count_distinct,
    distinct_values,
    first_of_each,
    in_order,
    numbered,
    occurrences,
    weights_of,
)


@pytest.mark.parametrize("n", [0, 1, 2, 300, TABLE, TABLE + 1])
@pytest.mark.parametrize("most", [1, 7, 10_000])
def test_counting_agrees_with_numpy(n: int, most: int) -> None:
    """In a table and by sorting."""
    numbers = np.random.default_rng(n).integers(0, most, n)
    values, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    assert np.array_equal(distinct_values(numbers), values)
    assert np.array_equal(occurrences(numbers), counts)
    assert np.array_equal(in_order(numbers), np.argsort(numbers, kind="stable"))
    for found, expected in zip(first_of_each(numbers), (first, counts), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64])
@pytest.mark.parametrize("most", [3, 255])
@pytest.mark.parametrize("n", [1, 300, TABLE])
@pytest.mark.parametrize("alike", [False, True])
def test_weights_of_values(dtype: type[np.generic], most: int, n: int, *, alike: bool) -> None:
    """The sums of the weights by value, values ascending."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, most, n, dtype) * dtype(np.iinfo(dtype).max // 256)  # type: ignore[arg-type]
    weight = np.full(n, 0.1) if alike else rng.random(n)
    distinct, sums = weights_of(values, weight)
    assert np.array_equal(distinct, np.unique(values))
    # Bit by bit: to the order in which numbers are added, shares are sensitive
    numbers = np.searchsorted(distinct, values)
    assert np.array_equal(sums, np.bincount(numbers, weight)) or len(distinct) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64, np.int64])
@pytest.mark.parametrize(("n", "m"), [(0, 0), (5, 0), (0, 5), (300, 20), (20, 300)])
def test_among_equals_numpys_isin(dtype: type[np.generic], n: int, m: int) -> None:
    """Values that are wanted, also where nothing is."""
    rng = np.random.default_rng(n + m)
    values, wanted = (rng.integers(0, 50, size).astype(dtype) for size in (n, m))
    assert np.array_equal(among(values, wanted), np.isin(values, wanted))
    assert np.array_equal(among(values, {*wanted.tolist()}), np.isin(values, wanted))


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("n", [0, 1, 300, TABLE])
def test_equal_keys_have_one_number_even_if_hashes_collide(
    monkeypatch: pytest.MonkeyPatch, n: int, *, collide: bool
) -> None:
    """Equal keys have one number, whatever their hashes."""
    if collide:
        monkeypatch.setattr(counting, "_MULTIPLIERS", (np.uint64(1),) * 3)
    keys = np.random.default_rng(n).integers(0, 1 + n // 2, n).astype(np.uint64)
    number = numbered(keys)
    distinct = np.unique(keys)
    assert np.array_equal(np.unique(number), np.arange(len(distinct)))
    assert len({*zip(keys.tolist(), number.tolist(), strict=True)}) == len(distinct) == count_distinct(keys)
    assert np.array_equal(among(keys, distinct[::2]), np.isin(keys, distinct[::2]))


@pytest.mark.parametrize("limit", [2, 256, 1000])
@pytest.mark.parametrize("n", [1001, 4097, 60_000])
def test_evenly_spaced_rows(n: int, limit: int) -> None:
    """The same rows as `linspace` gives, the last one included."""
    assert np.array_equal(features.evenly(n, limit), np.linspace(0, n - 1, limit).astype(np.intp))
