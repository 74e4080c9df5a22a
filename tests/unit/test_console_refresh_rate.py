"""The refresh rate drops while CPUs are saturated and traffic is steady; on a fake clock."""

from __future__ import annotations

import pytest

from fwtop.console.frugal import RefreshRate


class Clock:
    """A clock that advances on demand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


MIX = {"udp": 0.9, "tcp": 0.1}
ENDS = {"netfilter 7": 0.6, "delivered None": 0.4}


def settled(
    cpu_saturated: bool = True, calm: bool = False, watched: bool = True
) -> tuple[RefreshRate, Clock]:
    """Return a refresh rate that saw the same fingerprint for five seconds."""
    clock = Clock()
    refresh = RefreshRate(clock, watched=watched)
    for _ in range(5):
        refresh.update(cpu_saturated=cpu_saturated, calm=calm, fingerprint="flood")
        clock.now += 1.0
    assert refresh.judge_now(1000.0, MIX, ENDS)
    return refresh, clock


def judgements(refresh: RefreshRate, clock: Clock, seconds: float, pps: float = 1000.0) -> int:
    """Count the judgements at two ticks a second."""
    made = 0
    for _ in range(round(seconds * 2)):
        clock.now += 0.5
        made += refresh.judge_now(pps, MIX, ENDS)
    return made


@pytest.mark.parametrize("watched", [True, False])
def test_an_attack_that_stays_as_it_is_is_shown_once_a_second_and_judged_every_two(*, watched: bool) -> None:
    refresh, clock = settled(cpu_saturated=False, watched=watched)
    assert not refresh.reduced
    assert refresh.tick_seconds(0.5) == 1.0
    assert judgements(refresh, clock, 8.0) == 4
    refresh.update(cpu_saturated=False, calm=False, fingerprint="another flood")
    assert refresh.tick_seconds(0.5) == 0.5
    assert judgements(refresh, clock, 4.0) == 4


def test_saturated_cpus_and_steady_traffic_reduce_the_rate() -> None:
    refresh, clock = settled()
    assert refresh.reduced
    assert refresh.tick_seconds(0.5) == 2.0
    assert refresh.tick_seconds(3.0) == 3.0  # a slower rate stays
    assert judgements(refresh, clock, 12.0) == 2


def test_a_surge_is_judged_immediately() -> None:
    refresh, clock = settled()
    clock.now += 0.1
    assert not refresh.judge_now(1400.0, MIX, ENDS)
    assert refresh.judge_now(1600.0, MIX, ENDS)


def test_a_new_protocol_mix_is_judged_at_the_normal_rate() -> None:
    refresh, clock = settled()
    clock.now += 1.0
    assert not refresh.judge_now(1000.0, {"udp": 0.85, "tcp": 0.15}, ENDS)
    assert refresh.judge_now(1000.0, {"udp": 0.7, "tcp": 0.1, "icmp": 0.2}, ENDS)


def test_a_change_or_a_key_restores_the_normal_rate() -> None:
    refresh, clock = settled()
    refresh.update(cpu_saturated=True, calm=False, fingerprint="another flood")
    assert not refresh.reduced
    clock.now += 4.5
    assert refresh.reduced
    refresh.changed()
    assert refresh.tick_seconds(0.5) == 0.5
    clock.now += 4.5
    assert refresh.reduced


def test_packets_that_end_elsewhere_are_judged_at_the_normal_rate() -> None:
    """What became of an attack is told with each judgement: it must not lag behind the ledger."""
    refresh, clock = settled()
    clock.now += 1.0
    assert not refresh.judge_now(1000.0, MIX, {"netfilter 7": 0.61, "delivered None": 0.39})
    assert refresh.judge_now(1000.0, MIX, {"netfilter 7": 0.65, "delivered None": 0.35})


def test_calm_traffic_is_shown_once_a_second_and_judged_every_two() -> None:
    refresh, clock = settled(cpu_saturated=False, calm=True)
    assert not refresh.reduced  # the detail stays: samples and hooks as ever
    assert refresh.tick_seconds(0.5) == 1.0
    assert refresh.tick_seconds(2.0) == 2.0
    assert refresh.check_seconds(0.5) == 0.25  # but a change is looked for more often
    assert judgements(refresh, clock, 8.0) == 4


def test_calm_traffic_that_nobody_watches_is_looked_at_a_quarter_as_often() -> None:
    refresh, clock = settled(cpu_saturated=False, calm=True, watched=False)
    assert refresh.tick_seconds(1.0) == 4.0
    assert refresh.check_seconds(1.0) == 0.25  # a change is looked for as often as ever
    assert judgements(refresh, clock, 12.0) == 3
    refresh.changed()
    assert refresh.tick_seconds(1.0) == 1.0


def test_a_surge_in_calm_traffic_is_judged_immediately() -> None:
    refresh, clock = settled(cpu_saturated=False, calm=True)
    clock.now += 0.1
    assert refresh.judge_now(1600.0, MIX, ENDS)


def test_an_attack_ends_the_calm() -> None:
    refresh, clock = settled(cpu_saturated=False, calm=True)
    refresh.update(cpu_saturated=False, calm=False, fingerprint="flood")
    assert refresh.tick_seconds(0.5) == 0.5
    assert judgements(refresh, clock, 4.0) == 4


def test_a_change_in_calm_traffic_restores_the_normal_rate() -> None:
    refresh, clock = settled(cpu_saturated=False, calm=True)
    refresh.changed()
    assert refresh.tick_seconds(0.5) == 0.5
    assert judgements(refresh, clock, 4.0) == 4
    clock.now += 0.5
    assert refresh.tick_seconds(0.5) == 1.0


def test_a_change_in_calm_traffic_brings_the_next_tick_forward() -> None:
    refresh, clock = settled(cpu_saturated=False, calm=True)
    assert refresh.tick_early(0.5)
    assert refresh.tick_seconds(0.5) == 0.5  # and restores the normal rate
    assert refresh.tick_early(0.5)  # a screen that was just opened need not wait for its tick, either
    clock.now += 0.5
    assert not refresh.tick_early(0.5)  # but bursts don't make every check a tick
    clock.now += 0.5
    assert refresh.tick_early(0.5)


def test_a_known_attack_whose_rate_varies_ticks_early_at_the_reduced_rate() -> None:
    refresh, clock = settled()
    assert refresh.tick_early(0.5)
    assert refresh.reduced
    clock.now += 0.5
    assert not refresh.tick_early(0.5)
    clock.now += 0.5
    assert refresh.tick_early(0.5)
    assert refresh.tick_seconds(0.5) == 2.0


def test_saturated_cpus_matter_more_than_calm() -> None:
    refresh, _ = settled(cpu_saturated=True, calm=True)
    assert refresh.tick_seconds(0.5) == 2.0
    assert refresh.check_seconds(0.5) == 0.25  # an attack must not wait for the tick, least of all then
    unwatched, _ = settled(cpu_saturated=True, calm=True, watched=False)
    assert unwatched.tick_seconds(1.0) == 4.0  # not more often than on an idle machine


def test_a_rule_that_shows_its_effect_is_judged_immediately() -> None:
    refresh, clock = settled()
    clock.now += 0.1
    assert not refresh.judge_now(1000.0, MIX, {"netfilter 7": 0.7, "delivered None": 0.3})
    assert refresh.judge_now(1000.0, MIX, {"netfilter 7": 0.99, "delivered None": 0.01})
