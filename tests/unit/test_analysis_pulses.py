"""Pulses are reported only where the observation proves a pause; blind spots of the observation are none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from analysis_factory import make_batch, make_frames, make_tables

from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import NoOrigin
from fwtop.stats.engine import Engine

FLOOD = {"protocol": "tcp", "flags": "S", "dport": 80, "src": "random"}
VISITORS = {"make": "connections", "src": "60"}
Seen = Callable[[np.ndarray], np.ndarray]


def _sentences(
    items: list[dict], seconds: float, seen: Seen, *, tick: float = 0.5, window: float = 5.0
) -> set[str]:
    """Watch live traffic through polls of which the samples are a part only; return all evidence."""
    batch = make_batch(make_frames(items, seconds))
    at = (batch.time_ns - 10**12) / 1e9
    taken = seen(at)
    engine, advisor = Engine(NoOrigin(), window_seconds=window, live=True), Advisor()
    found: set[str] = set()
    for end in np.arange(tick, seconds + 0.01, tick).tolist():
        inside = (at >= end - tick) & (at < end)
        samples = batch.select(inside & taken)
        packets = int(inside.sum())
        if len(samples):
            samples.weight[:] = packets / len(samples)
        size = int(batch.length[inside].sum())
        engine.feed(samples, Counters(tick, packets, size), 1_700_000_000.0 + end)
        view = engine.window()
        judgement = advisor.judge(view, make_tables(view))
        found |= {line for attack in judgement.attacks for line in attack.evidence}
    return found


def _pulses(found: set[str]) -> list[str]:
    return [line for line in found if "pulses" in line or "waves" in line or line.startswith("it ended")]


@pytest.mark.one_each("blind ticks", "few samples")
@pytest.mark.parametrize(
    "seen",
    [
        lambda at: (at % 0.4) < 0.01,  # duty-cycle windows
        lambda at: (at % 6.0) < 2.5,  # ticks without samples
        lambda at: (at < 4.0) | (at > 11.0),  # nothing at all for longer than the window
        lambda at: (np.arange(len(at)) % 150) == 0,  # few samples
    ],
    ids=["duty cycle", "blind ticks", "blind window", "few samples"],
)
def test_a_constant_flood_has_no_pulses_however_it_is_watched(seen: Seen) -> None:
    found = _sentences([{**FLOOD, "count": 40_000}, {**VISITORS, "count": 150}], 20.0, seen)
    assert found
    assert _pulses(found) == []


def test_a_small_flood_beside_a_large_one_has_no_pulses_in_a_thin_sample() -> None:
    small = {"src": "300", "sport": 123, "dport": "random", "payload": "ntp", "count": 2_000}
    found = _sentences([{**FLOOD, "count": 40_000}, small], 20.0, lambda at: (np.arange(len(at)) % 20) == 0)
    assert found
    assert _pulses(found) == []


@pytest.mark.one_each("duty cycle")
@pytest.mark.parametrize(
    "seen", [lambda at: at >= 0, lambda at: (at % 0.1) < 0.02], ids=["everything", "duty cycle"]
)
def test_real_pulses_are_found_in_the_same_ways(seen: Seen) -> None:
    pulses = [{**FLOOD, "count": 12_000, "start": begin, "stop": begin + 4.0} for begin in (1.0, 9.0, 17.0)]
    found = _sentences([*pulses, {**VISITORS, "count": 150}], 22.0, seen)
    assert "it comes in pulses: 3 so far" in found
    assert "it comes in pulses: 4 so far" not in found


def test_a_flood_that_falls_below_the_threshold_and_rises_again_has_no_pulses() -> None:
    flood = [
        {**FLOOD, "count": int(pps * (stop - begin)), "start": begin, "stop": stop}
        for begin, stop, pps in ((0.5, 7.0, 400), (7.0, 18.0, 250), (18.0, 26.0, 400))
    ]
    found = _sentences([*flood, {**VISITORS, "count": 200}], 26.0, lambda at: at >= 0)
    assert found
    assert _pulses(found) == []
