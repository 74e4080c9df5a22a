"""`fwtop bench` on the command line: its document, the list of tables, usage errors."""

from __future__ import annotations

import json

import pytest
from bench_run import check_form, document_of, run_bench

from fwtop.bench.catalogue import TABLES
from fwtop.model.paths import ROOT

pytestmark = pytest.mark.kernel


def test_every_listed_table_has_a_module() -> None:
    listed = json.loads(run_bench("list", "--json").stdout)
    assert [entry["table"] for entry in listed] == [table.name for table in TABLES]
    modules = {(table.package, table.name) for table in TABLES}
    assert all((ROOT / "fwtop/bench/tables" / package / f"{name}.py").is_file() for package, name in modules)


def test_calibrate_prints_the_cost_of_every_kind() -> None:
    document = document_of("calibrate", "--quick", "--rounds", "1", "--json")
    check_form(document, "calibrate")
    assert {row["name"] for row in document["rows"]} >= {"xdp", "ipset", "hashlimit", "string", "notrack"}
    assert {row["unit"] for row in document["rows"]} == {"ns a packet"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "no table 'nonsense'"),
        ([], "which table?"),
        (["ladder", "--calibrate"], "a table of its own"),
        (["xdp", "some.pcap"], "takes no captures"),
        (["pipeline", "--rounds", "0"], "not a whole number above 0"),
        (["accuracy", "/no/such.pcap", "--quick"], "No such file"),
        (["pipeline", "--corpus"], "goes with table accuracy alone"),
        (["accuracy", "some.pcap", "--corpus"], "goes with table accuracy alone"),
        (["fit", "/no/such/weights.toml"], "can't be written; nothing was fitted"),
    ],
)
def test_bad_input_gets_one_line(words: list[str], said: str) -> None:
    done = run_bench(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
