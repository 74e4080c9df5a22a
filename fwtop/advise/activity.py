"""When a vector was on within a window: its pulses, its height and whether it is over."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count

PAUSE_SECONDS = 2.0  # without packets: then it has stopped, and what comes is another wave
_PARTS = 50  # of the window, so that a stray packet before the onset doesn't count
_STRONG = 0.1  # of the rate of its strongest part
_SPACINGS = 20  # mean distances of its packets: a slow vector hasn't stopped between two of them


@dataclass(frozen=True, slots=True)
class Activity:
    """A vector's life in the window, Unix seconds and packets a second."""

    pulses: tuple[tuple[float, float], ...]  # first and last packet of each, in order
    peak_pps: float  # over the busiest second, where the window is long enough to have one
    over: bool  # whether it stopped before the window ended


def activity(scene: Scene, finding: Finding, pps: float) -> Activity:
    """Look at when the finding's rows came; `pps` is its mean rate."""
    traffic, rows = scene.traffic, finding.rows
    finish = traffic.started + traffic.seconds
    if len(rows) == 0:
        return Activity(((finish, finish),), pps, over=False)
    times = traffic.packets.time_ns
    first, last = int(times.min()), int(times.max())
    mine = times[rows]
    place = np.minimum((mine - first) / (last - first + 1) * _PARTS, _PARTS - 1).astype(np.intp)
    rates = np.bincount(place, traffic.weight[rows], _PARTS)
    strong = (rates >= _STRONG * rates.max())[place]
    on = (np.sort(mine[strong]) - first) / 1e9
    spacing = float(np.median(np.diff(on))) if len(on) > 1 else traffic.seconds
    pause = max(PAUSE_SECONDS, 2 * traffic.seconds / _PARTS, _SPACINGS * spacing)
    gaps = np.flatnonzero(np.diff(on) > pause)
    starts, ends = on[np.concatenate([[0], gaps + 1])], on[np.concatenate([gaps, [len(on) - 1]])]
    pulses = tuple(
        (
            traffic.started + min(float(begin), traffic.seconds),
            traffic.started + min(float(end), traffic.seconds),
        )
        for begin, end in zip(starts, ends, strict=True)
    )
    # Live, the rate is that of a few seconds, and its own peaks are kept from tick to tick.
    peak = Facts(traffic, rows).peak_pps
    by_chance = traffic.live or finding.state or peak < scene.config.min_samples
    return Activity(
        pulses,
        pps if by_chance else max(pps, peak),
        over=not finding.state and finish - pulses[-1][1] > pause,
    )


def story(active: Activity, pps: float, *, peak_pps: float, waves: int, follows: str) -> list[str]:
    """Tell its height, its waves, what it took the place of and its end, as far as there is something."""
    notes = []
    if peak_pps > 1.2 * pps:
        notes.append(f"its peak was {count(peak_pps)} packets a second")
    if waves > 1:
        notes.append(f"it comes in waves: {waves} so far")
    if follows:
        notes.append(f"it follows {follows}: the vector was changed")
    if active.over:
        notes.append(f"it ended at {time.strftime('%H:%M:%S', time.gmtime(active.pulses[-1][1]))} UTC")
    return notes
