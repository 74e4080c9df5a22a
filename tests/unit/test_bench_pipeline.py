from __future__ import annotations

from functools import partial

import pytest

from benches.tables import pipeline
from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline
from fwtop.bench.frame import Options
from tests.kernel.bench_run import check_form


@pytest.mark.matrix  # a developers' table
def test_the_pipeline_table_measures_every_row_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "crowded", partial(pipeline.crowded, samples=6_000))
    monkeypatch.setattr(pipeline, "_TICKS", 4)
    table = pipeline.run(Options(rounds=1), captured=3000).to_json()
    check_form(table, "pipeline")
    assert table["rounds"] == 1
    names = [row["name"] for row in table["rows"]]
    assert "parse and aggregate SYN" in names
    assert "read pcap" in names
    assert "judge 60,000 samples: 40 attacks" in names
    (clients,) = (row for row in table["rows"] if row["name"].startswith("known clients"))
    assert 0 < clients["median"] < 1024


def test_of_forty_attacks_at_once_most_are_named() -> None:
    """Some share their packets' kind and port, or are too alike, and are one."""
    names = pipeline.at_once(40)
    assert len(set(names)) == 40
    window = pipeline.crowded(names, samples=20_000)
    found = {one.kind for one in find_attacks(make_context(window, AdviseConfig(), Baseline()))}
    assert len(found) >= 25
