"""Windows of few packets or none, cut short, at any hook, with counters that disagree: all are judged."""

from __future__ import annotations

import functools
import warnings
from random import Random

import numpy as np
import pytest
from analysis_factory import make_batch, make_frames
from held_tables import SORTS, table
from msgspec.structs import replace
from test_analysis_in_force import check, rules_in_force
from test_analysis_propose import VISITORS
from test_analysis_scenarios import SCENARIOS, load

from fwtop.analysis.proposals.preview import preview
from fwtop.analysis.shown import part_traffic
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.counters import ConntrackSample, Counters, DropCount
from fwtop.model.traffic.packets import Hook, NoOrigin, PacketBatch, SocketTable
from fwtop.model.traffic.snapshot import TrafficPart
from fwtop.stats.engine import Engine

HOOKS = (Hook.INGRESS, Hook.XDP, Hook.DROP, Hook.ACCEPTED)
FEW = ("syn_flood", "http_flood", "dns_amplification_v6", "calm_web", "fragments_of_udp", "tls_stalled")


@functools.lru_cache(16)
def scenario(stem: str) -> tuple[tuple[tuple[float, bytes], ...], float]:
    made = load(next(path for path in SCENARIOS if path.stem == stem))
    return tuple(make_frames(made["traffic"], made["seconds"])), made["seconds"]


def some_packets(rng: Random, stem: str, turn: int) -> PacketBatch:
    """Return a stretch or a sample of a scenario's packets, cut short, at hooks of any kind."""
    frames, _ = scenario(stem)
    count = min(rng.choice((0, 1, 2, 3, 5, 10, 30, 100, 1000)), len(frames))
    first = rng.randrange(len(frames) - count + 1)
    chosen = rng.choice((list(frames[first : first + count]), sorted(rng.sample(frames, count))))
    snap, weight = rng.choice((14, 18, 34, 42, 54, 70, 96, 216)), rng.choice((1.0, 40.0, 0.5, 1000.0))
    batch = make_batch(chosen, snap=snap, weight=weight, start_ns=10**12 + turn * 10**9)
    if count and rng.random() < 0.4:
        hooks = rng.choices([int(hook) for hook in HOOKS], (12, 4, 3, 1), k=count)
        batch = replace(batch, hook=np.array(hooks, np.uint8))
    return batch


def some_counters(rng: Random, batch: PacketBatch, seconds: float) -> Counters:
    """Return counters that may say something else than the samples."""
    whole = int(batch.weight.sum())
    packets = rng.choice((0, 1, whole, 3 * whole))
    drops = tuple(
        DropCount(rng.choice(("nic", "netfilter", "xdp", "socket")), "why", rng.choice((0, 5, packets)))
        for _ in range(rng.randrange(3))
    )
    tracked = ConntrackSample(
        count=rng.choice((0, 900)), max=rng.choice((0, 1000)), new_per_s=rng.choice((0, 9e4))
    )
    return Counters(
        seconds, packets, packets * 60, drops=drops, records_lost=rng.choice((0, 100)),
        one_in=rng.choice((1.0, 40.0)), conntrack=rng.choice((None, tracked)),
    )  # fmt: skip


def some_sockets(rng: Random) -> SocketTable | None:
    if rng.random() < 0.5:
        return None
    parts = [(rng.choice(sorted(SORTS)), rng.choice((1, 3, 400)), 1 + rng.randrange(40)) for _ in range(2)]
    return table(*parts[: rng.randrange(3)], share=rng.choice((0.01, 1.0)), queue=rng.random())


def any_windows(seed: int, stems: tuple[str, ...]) -> None:
    """Judge some windows one after the other, as live traffic or as a capture."""
    rng, advisor = Random(seed), Advisor()
    live, now = rng.random() < 0.6, 1_700_000_000.0
    engine = Engine(NoOrigin(), window_seconds=3.0 if live and rng.random() < 0.8 else None, live=live)
    for turn in range(rng.choice((1, 2, 3))):
        stem = rng.choice(stems)
        batch, seconds = some_packets(rng, stem, turn), rng.choice((0.0, 0.5, scenario(stem)[1]))
        now += seconds
        engine.feed(batch, some_counters(rng, batch, seconds) if live else None, now)
        window = replace(engine.window(), sockets=some_sockets(rng) if live else None)
        rules = (
            list(rules_in_force(window.arrived, window.seconds, rng.random())) if len(window.arrived) else []
        )
        active = rng.sample(rules, min(len(rules), rng.randrange(3)))
        tables = engine.tables()
        judgement = advisor.judge(window, tables, active)
        check((tables, judgement, advisor.standing.mark(tables.sources)))
        assert advisor.judged is not None
        check([part_traffic(advisor.judged, TrafficPart(one.id), NoOrigin(), 9) for one in judgement.attacks])
        check([preview(rule, window, advisor.baseline) for rule in active])


@pytest.mark.one_each("0", "30")
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_any_window_is_judged(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of a mean of nothing
        for seed in range(first, first + 10):
            any_windows(seed, FEW)


@pytest.mark.matrix
@pytest.mark.parametrize("first", range(0, 10_000, 100))
def test_ten_thousand_windows_are_judged(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(first, first + 100):
            any_windows(seed, tuple(path.stem for path in SCENARIOS))


def test_a_long_window_without_new_packets_teaches_nothing() -> None:
    batch = make_batch(make_frames([VISITORS], 5.0))
    engine, advisor = Engine(NoOrigin(), window_seconds=None, live=True), Advisor()
    nothing = batch.select(slice(0, 0))
    for now, part in ((5.0, batch), (15.0, nothing)):
        engine.feed(part, Counters(5.0, len(part), int(part.length.sum())), 1_700_000_000 + now)
        assert not advisor.judge(engine.window(), engine.tables()).not_judged
    assert len(advisor.baseline.rows) > 0


def test_more_samples_than_were_counted_give_shares() -> None:
    """Such as while the sampling rate changes."""
    batch = make_batch(make_frames([{"dport": 80, "src": "400", "payload": "zeros", "count": 4_000}], 5.0))
    batch = replace(batch, weight=np.where(np.arange(len(batch)) % 3, 0.5, 1.4))
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True)
    engine.feed(batch, Counters(3.0, 3_200, 3_200 * 60, one_in=2.0), 1_700_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables = engine.tables()
    check(tables)
    assert len(tables.sources.address) == 50
