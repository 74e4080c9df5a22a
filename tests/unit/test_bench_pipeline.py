from __future__ import annotations

from fwtop.bench.frame import Options
from fwtop.bench.tables.watching import pipeline


def test_the_pipeline_table_measures_every_row_in_every_round() -> None:
    table = pipeline.run(Options(rounds=1), captured=3000).to_json()
    assert table["table"] == "pipeline"
    assert table["rounds"] == 1
    names = [row["name"] for row in table["rows"]]
    assert "parse and aggregate SYN" in names
    assert "read pcap" in names
    assert all(row["median"] > 0 and row["low"] <= row["median"] <= row["high"] for row in table["rows"])
