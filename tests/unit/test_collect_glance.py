"""A glance tells that another thing arrives: by rate, by size, by protocol; and not by noise."""

from __future__ import annotations

import numpy as np
import pytest

from fwtop.collect.glance import Arrivals, Glance


def glances(*halves: tuple[int, int, int, int]) -> list[bool]:
    """Look each half second; of each: packets and bytes received, TCP and UDP packets that windows saw."""
    sums, moment = [0, 0, 0, 0], [0.0]
    found = []

    def arrivals() -> Arrivals:
        return Arrivals(sums[0], sums[1], np.array([[sums[2], 0], [sums[3], 0]], np.int64))

    glance = Glance(arrivals, lambda: moment[0])
    glance.look()
    for half in halves:
        sums[:] = [have + more for have, more in zip(sums, half, strict=True)]
        moment[0] += 0.5
        found.append(glance.look())
    return found


FLOOD = (500_000, 50_000_000, 100, 4_000)


def test_the_same_flood_is_the_same() -> None:
    noisy = [(480_000, 47_000_000, 90, 4_400), (560_000, 57_000_000, 160, 3_600)]
    assert glances(FLOOD, *noisy, FLOOD) == [False] * 4


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
def test_another_flood_is_seen_once(other: tuple[int, int, int, int]) -> None:
    assert glances(FLOOD, FLOOD, other, other) == [False, False, True, False]


def test_a_quiet_line_has_no_changes() -> None:
    assert glances((40, 4000, 30, 10), (90, 30_000, 10, 80), (5, 300, 5, 0))[:1] == [False]
    assert glances((40, 4000, 30, 10), (90, 9100, 10, 30)) == [False, False]
