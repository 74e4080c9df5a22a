"""A flood from more sources than xt_hashlimit remembers: the limit isn't offered, and a preview warns."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_commands import check_commands
from analysis_factory import make_batch, make_frames, make_tables, make_window
from msgspec.structs import replace
from test_analysis_propose import VISITORS, learned

from fwtop.analysis.proposals.limits import extrapolated
from fwtop.analysis.proposals.preview import preview
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.model.traffic.packets import Window
from fwtop.rules.xtables import HASHLIMIT_MAX
from fwtop.xdp.maps import BUCKETS


def flooded(sources: str, weight: float) -> Window:
    flood = {"src": sources, "dport": 27015, "payload": "random_any", "count": 9000}
    return make_window(make_batch(make_frames([VISITORS, flood], 5.0), weight=weight), 5.0, live=True)


def limit_of(kind: Kind, per: int) -> Rule:
    return Rule("", kind, Match(protocol=17, dport=27015), "", 600, limit=RateLimit(10, 10, per))


def test_a_limit_that_would_fill_its_table_is_warned_of_and_harms_every_new_client() -> None:
    window, advisor = flooded("400000", 40.0), learned()
    shown = preview(limit_of(Kind.HASHLIMIT, 32), window, advisor.baseline)
    warning = next(line for line in shown.warnings if "table" in line)
    assert f"{HASHLIMIT_MAX:,}" in warning
    assert "--via xdp, or --per 24" in warning
    assert shown.examples == ("every new client, once its table is full",)
    driver = preview(limit_of(Kind.XDP, 32), window, advisor.baseline)
    assert not any("table" in line for line in driver.warnings)
    short = preview(limit_of(Kind.HASHLIMIT, 24), window, advisor.baseline)
    assert not any("table" in line for line in short.warnings)


def test_a_compiled_limit_that_would_evict_its_sources_is_warned_of() -> None:
    window, advisor = flooded("400000", 400.0), learned()
    shown = preview(limit_of(Kind.XDP, 32), window, advisor.baseline)
    warning = next(line for line in shown.warnings if "evicted" in line)
    assert f"{BUCKETS:,}" in warning
    assert warning.endswith("use --per 16")
    short = preview(limit_of(Kind.XDP, 16), window, advisor.baseline)
    assert not any("evicted" in line for line in short.warnings)


def test_few_sources_fill_nothing_however_fast_they_are() -> None:
    window, advisor = flooded("2000", 4000.0), learned()
    shown = preview(limit_of(Kind.HASHLIMIT, 32), window, advisor.baseline)
    assert not any("table" in line for line in shown.warnings)
    driver = preview(limit_of(Kind.XDP, 32), window, advisor.baseline)
    assert not any("evicted" in line for line in driver.warnings)


@pytest.mark.one_each
@pytest.mark.parametrize("sources", ["400", "20000", "400000"])
@pytest.mark.parametrize("weight", [1.0, 40.0, 400.0])
def test_no_limit_is_proposed_that_would_fill(sources: str, weight: float) -> None:
    window, advisor = flooded(sources, weight), learned()
    for proposal in advisor.judge(window, make_tables(window)).proposals:
        if proposal.rule is None or proposal.rule.limit is None:
            continue
        check_commands(proposal)
        shown = preview(replace(proposal.rule), window, advisor.baseline)
        assert not any("table" in line for line in shown.warnings)


@pytest.mark.parametrize("population", [1_000, 50_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("packets", [100_000, 2_000_000])
def test_the_number_of_sources_is_foretold_from_samples(population: int, packets: int) -> None:
    chance = np.random.default_rng(7)
    true = population * (1 - (1 - 1 / population) ** packets)
    _, counts = np.unique(chance.integers(0, population, 8_000), return_counts=True)
    assert extrapolated(counts, packets) == pytest.approx(true, rel=0.6)


def test_heavy_senders_beside_a_few_new_ones_are_not_taken_for_many() -> None:
    chance = np.random.default_rng(7)
    drawn = np.concatenate([chance.integers(0, 50, 7_900), chance.integers(1_000, 1_400, 100)])
    _, counts = np.unique(drawn, return_counts=True)
    assert extrapolated(counts, 10_000_000) < 1_500
