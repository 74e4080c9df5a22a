"""The pipeline table in small: its form, and that every row measured something."""

from fwtop.bench.pipeline import pipeline


def test_the_table_has_the_fixed_form() -> None:
    table = pipeline(rounds=1, captured=3000)
    assert set(table) == {"table", "machine", "kernel", "rounds", "rows"}
    assert (table["table"], table["rounds"]) == ("pipeline", 1)
    names = [row["name"] for row in table["rows"]]
    assert {"parse SYN", "parse and aggregate UDP over IPv6", "read pcap"} <= set(names)
    for row in table["rows"]:
        assert set(row) == {"name", "unit", "median", "low", "high", "ratio", "versus"}
        assert 0 < row["low"] <= row["median"] <= row["high"]
        assert (row["ratio"] is None) == (row["versus"] is None)
