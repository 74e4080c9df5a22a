"""Changes in rate, packet size and protocol mix are detected; noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from fwtop.live.load import Arrivals, ChangeDetector


def changes(*halves: tuple[int, int, int, int]) -> list[bool]:
    """Call it each half second, with packets and bytes received and the TCP and UDP packets seen."""
    sums, moment = [0, 0, 0, 0], [0.0]
    found = []

    def arrivals() -> Arrivals:
        return Arrivals(sums[0], sums[1], np.array([[sums[2], 0], [sums[3], 0]], np.int64))

    detector = ChangeDetector(arrivals, lambda: moment[0])
    detector.changed()
    for half in halves:
        sums[:] = [have + more for have, more in zip(sums, half, strict=True)]
        moment[0] += 0.5
        found.append(detector.changed())
    return found


FLOOD = (500_000, 50_000_000, 100, 4_000)


def test_a_steady_flood_is_no_change() -> None:
    noisy = [(480_000, 47_000_000, 90, 4_400), (560_000, 57_000_000, 160, 3_600)]
    assert changes(FLOOD, *noisy, FLOOD) == [False] * 4


@pytest.mark.parametrize(
    "other",
    [
        (900_000, 90_000_000, 100, 4_000),
        (200_000, 20_000_000, 100, 4_000),
        (500_000, 250_000_000, 100, 4_000),
        (500_000, 50_000_000, 4_000, 100),
    ],
    ids=["more", "less", "longer", "another protocol"],
)
def test_a_different_flood_is_one_change(other: tuple[int, int, int, int]) -> None:
    assert changes(FLOOD, FLOOD, other, other) == [False, False, True, False]


def test_an_idle_line_has_no_changes() -> None:
    assert changes((40, 4000, 30, 10), (90, 30_000, 10, 80), (5, 300, 5, 0))[:1] == [False]
    assert changes((40, 4000, 30, 10), (90, 9100, 10, 30)) == [False, False]
