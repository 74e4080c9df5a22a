"""When the console looks and judges less often, on a clock of its own."""

from __future__ import annotations

from fwtop.console.pace import Pace


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


MIX = {"udp": 0.9, "tcp": 0.1}


def settled(pressed: bool = True) -> tuple[Pace, Clock]:
    """Return a pace that saw the same picture for four seconds."""
    clock = Clock()
    pace = Pace(clock)
    for _ in range(5):
        pace.note(pressed=pressed, picture="flood")
        clock.now += 1.0
    assert pace.judge_now(1000.0, MIX)
    return pace, clock


def judgements(pace: Pace, clock: Clock, seconds: float, pps: float = 1000.0) -> int:
    """Count the judgements at two ticks a second."""
    made = 0
    for _ in range(round(seconds * 2)):
        clock.now += 0.5
        made += pace.judge_now(pps, MIX)
    return made


def test_with_time_to_spare_it_looks_and_judges_as_usual() -> None:
    pace, clock = settled(pressed=False)
    assert not pace.saving
    assert pace.tick_seconds(0.5) == 0.5
    assert judgements(pace, clock, 6.0) == 6


def test_pressed_and_unchanged_it_looks_and_judges_less_often() -> None:
    pace, clock = settled()
    assert pace.saving
    assert pace.tick_seconds(0.5) == 2.0
    assert pace.tick_seconds(3.0) == 3.0  # what is slower stays so
    assert judgements(pace, clock, 12.0) == 2


def test_a_surge_is_judged_at_once() -> None:
    pace, clock = settled()
    clock.now += 0.1
    assert not pace.judge_now(1400.0, MIX)
    assert pace.judge_now(1600.0, MIX)


def test_another_mix_of_protocols_is_judged_at_the_usual_time() -> None:
    pace, clock = settled()
    clock.now += 1.0
    assert not pace.judge_now(1000.0, {"udp": 0.85, "tcp": 0.15})
    assert pace.judge_now(1000.0, {"udp": 0.7, "tcp": 0.1, "icmp": 0.2})


def test_a_change_and_a_key_bring_the_usual_pace_back_for_a_while() -> None:
    pace, clock = settled()
    pace.note(pressed=True, picture="another flood")
    assert not pace.saving
    clock.now += 3.0
    assert pace.saving
    pace.changed()
    assert pace.tick_seconds(0.5) == 0.5
    clock.now += 3.0
    assert pace.saving
