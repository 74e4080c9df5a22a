"""Sampled tables: who comes first, and intervals that cover the truth."""

import ipaddress

import numpy as np
import pytest
from test_stats import packets

from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import U64, NoOrigin
from fwtop.stats.engine import Engine
from fwtop.stats.sums import SAMPLES, SUMS, VARIANCE, WEIGHT, KeyedSums


def sampled(truth: dict[str, int], one_in: int, chance: np.random.Generator, ticks: int = 4) -> Engine:
    """An engine that saw a flood 1 in N, with N different in every tick."""
    engine = Engine(NoOrigin(), window_seconds=10.0, live=True)
    names = np.array([int(ipaddress.ip_address(name)) for name in truth])
    sent = np.repeat(names, list(truth.values()))
    chance.shuffle(sent)
    for tick, part in enumerate(np.array_split(sent, ticks)):
        now_in = one_in * (1 + tick % 3)
        seen = part[chance.random(len(part)) < 1 / now_in]
        batch = packets(len(seen))
        batch.src_lo[:] = seen
        batch.weight[:] = now_in
        engine.feed(batch, Counters(0.25, len(part), len(part) * 60, one_in=float(now_in)), tick * 0.25)
    return engine


FEW = {f"198.51.100.{i}": 300 * i * i for i in range(1, 21)}
EQUAL = {f"10.{i // 250}.0.{i % 250}": 700 for i in range(1000)}
MIXED = {
    **{f"192.0.2.{i}": 20_000 for i in range(10)},
    **{f"10.1.{i // 250}.{i % 250}": 150 for i in range(2000)},
}


@pytest.mark.one_each("truth1-150", "truth3-60")
@pytest.mark.parametrize(("truth", "one_in"), [(FEW, 30), (FEW, 150), (EQUAL, 40), (MIXED, 60)])
def test_intervals_cover_the_truth_in_about_95_of_100_rows(truth: dict[str, int], one_in: int) -> None:
    chance = np.random.default_rng(20261121)
    total = sum(truth.values())
    covered = []
    for _ in range(25):
        tables = sampled(truth, one_in, chance).tables()
        assert tables.totals.packets == total
        for row in tables.sources.address:
            covered.append(row.share.share_low <= truth[row.key] / total <= row.share.share_high)  # noqa: PERF401
    assert len(covered) > 300
    assert np.mean(covered) > 0.93
    if truth is FEW:  # no crowd of equals, so the intervals are as narrow as they should be
        assert np.mean(covered) < 0.975


def test_intervals_hold_where_n_jumped_at_the_onset_of_an_attack() -> None:
    """Weights from 1 to 64 in one window: fifty equal sources amid 20,000 that send next to nothing."""
    chance = np.random.default_rng(8)
    likely = np.concatenate((np.full(50, 0.01), np.full(20_000, 0.5 / 20_000)))
    covered: list[bool] = []
    for _ in range(3):
        engine = Engine(NoOrigin(), window_seconds=10.0, live=True)
        sent = np.zeros(len(likely))
        for count, one_in in ((8000, 1), (2400, 8), (17_000, 64), *[(33_000, 24)] * 12):
            part = chance.choice(len(likely), count, p=likely / likely.sum())
            sent += np.bincount(part, minlength=len(likely))
            seen = part[chance.random(count) < 1 / one_in]
            batch = packets(len(seen))
            batch.src_lo[:] = seen
            batch.weight[:] = one_in
            engine.feed(batch, Counters(0.1, count, count * 60, one_in=float(one_in)), 1.0)
        for row in engine.tables().sources.address:
            true = sent[int(ipaddress.ip_address(row.key))] / sent.sum()
            covered.append(row.share.share_low <= true <= row.share.share_high)
    assert np.mean(covered) > 0.93


def test_a_sampled_forged_flood_does_not_call_its_lucky_addresses_big() -> None:
    chance = np.random.default_rng(3)
    batch = packets(20_000)
    batch.src_lo[:] = chance.integers(0, 1 << 32, len(batch))
    batch.weight[:] = 1000.0
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True)
    engine.feed(batch, Counters(1.0, 20_000_000, 1_200_000_000, one_in=1000.0), 1.0)
    top = engine.tables().sources.address[0].share
    assert top.share_low <= 1 / 20_000_000 * 1.01
    assert top.packets < 100, "one sample of a forged source is not a thousand packets of it"


def test_where_everything_is_seen_intervals_have_no_width() -> None:
    engine = sampled({"192.0.2.1": 30, "192.0.2.2": 70}, 1, np.random.default_rng(1), ticks=1)
    for row in engine.tables().sources.address:
        assert row.share.share_low == row.share.share == row.share.share_high


def test_the_top_20_are_found() -> None:
    truth = {f"10.0.{i // 200}.{i % 200}": int(60_000 / (i + 1)) for i in range(3000)}
    found = []
    chance = np.random.default_rng(9)
    for _ in range(5):
        rows = sampled(truth, 10, chance).tables().sources.address[:20]
        best = sorted(truth.values(), reverse=True)[19]
        found += [truth[row.key] >= best for row in rows]
    assert np.mean(found) >= 0.95


def onset(heavy: U64) -> Engine:
    """Twenty clients seen whole; then a forged flood 1 in 20, but for a moment 1 in 1,800 (`heavy`)."""
    chance = np.random.default_rng(11)
    engine = Engine(NoOrigin(), window_seconds=10.0, live=True)
    calm = packets(20 * 180)
    calm.src_lo[:] = np.repeat(np.arange(1, 21), 180)
    engine.feed(calm, Counters(1.0, 3600, 216_000), 1.0)
    for one_in, sources in (
        (1800, heavy),
        (20, chance.integers(1 << 24, 1 << 32, 40_000).astype(np.uint64)),
    ):
        batch = packets(len(sources))
        batch.src_lo[:] = sources
        batch.weight[:] = one_in
        sent = one_in * len(sources)
        engine.feed(batch, Counters(1.0, sent, sent * 60, one_in=float(one_in)), 2.0)
    return engine


def test_single_samples_of_great_weight_do_not_outrank_sources_that_are_known() -> None:
    forged = np.random.default_rng(12).integers(1 << 24, 1 << 32, 25).astype(np.uint64)
    rows = onset(forged).tables().sources.address
    assert {row.key for row in rows[:20]} == {f"0.0.0.{number}" for number in range(1, 21)}
    assert [row.share.packets for row in rows] == sorted((row.share.packets for row in rows), reverse=True)
    assert all(row.share.share_low <= row.share.share <= row.share.share_high for row in rows)


def test_the_upper_limit_knows_what_was_missed_since_n_rose() -> None:
    """Clients were seen whole, and hardly at all since: each sends as much again under the attack."""
    chance = np.random.default_rng(6)
    engine = Engine(NoOrigin(), window_seconds=10.0, live=True)
    calm = packets(40 * 50)
    calm.src_lo[:] = np.repeat(np.arange(1, 41), 50)
    engine.feed(calm, Counters(1.0, 2000, 120_000), 1.0)
    sent = np.concatenate((calm.src_lo, chance.integers(1 << 24, 1 << 32, 400_000).astype(np.uint64)))
    seen = sent[chance.random(len(sent)) < 1 / 30]
    batch = packets(len(seen))
    batch.src_lo[:] = seen
    batch.weight[:] = 30
    engine.feed(batch, Counters(2.0, len(sent), len(sent) * 60, one_in=30.0), 3.0)
    true = 100 / (2000 + len(sent))
    rows = [row.share for row in engine.tables().sources.address if row.key.startswith("0.0.0.")]
    assert len(rows) == 40
    assert np.mean([row.share_low <= true <= row.share_high for row in rows]) >= 0.9


def test_a_source_of_many_heavy_samples_stays_on_top() -> None:
    burst = np.full(12, 99, np.uint64)
    first = onset(burst).tables().sources.address[0]
    assert first.key == "0.0.0.99"
    assert first.share.packets == pytest.approx(12 * 1800, rel=0.1)
    assert first.share.share_low < 12 * 1800 / (12 * 1800 + 800_000 + 3600) < first.share.share_high


def test_keys_whose_samples_weigh_the_same_are_ranked_by_weight() -> None:
    sums = np.zeros((SUMS, 3))
    sums[SAMPLES] = [1, 7, 3]
    sums[WEIGHT] = sums[SAMPLES] * 50
    sums[VARIANCE] = sums[SAMPLES] * 50 * 49
    counted = KeyedSums(np.arange(3, dtype=np.uint64), sums, {})
    assert counted.evident().tolist() == sums[WEIGHT].tolist()
    assert counted.largest(2).tolist() == [1, 2]
