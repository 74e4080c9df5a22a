"""`fwtop bench` and the developers' benches on the command line: documents, lists, usage errors."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from bench_run import DEVELOPERS, USERS, check_form, document_of, run_bench

from benches import catalogue as developers
from fwtop.bench import frame
from fwtop.model.paths import ROOT

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(("command", "tables"), [(USERS, frame.TABLES), (DEVELOPERS, developers.TABLES)])
def test_every_listed_table_has_a_module(command: list[str], tables: Sequence[frame.Table]) -> None:
    listed = json.loads(run_bench("list", "--json", command=command).stdout)
    assert [entry["table"] for entry in listed] == [table.name for table in tables]
    modules = [(table.home.replace(".", "/"), table.name) for table in tables]
    assert all((ROOT / home / f"{name}.py").is_file() for home, name in modules)


def test_no_table_is_listed_twice() -> None:
    names = [table.name for table in (*frame.TABLES, *developers.TABLES)]
    assert len(names) == len(set(names))


def test_calibrate_prints_the_cost_of_every_kind() -> None:
    document = document_of("calibrate", "--quick", "--rounds", "1", "--json")
    check_form(document, "calibrate")
    assert {row["name"] for row in document["rows"]} >= {"xdp", "ipset", "hashlimit", "string", "notrack"}
    assert {row["unit"] for row in document["rows"]} == {"ns a packet"}


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (USERS, ["nonsense"], "no table 'nonsense'"),
        (USERS, ["xdp"], "no table 'xdp'; 'fwtop bench list' names them"),
        (USERS, [], "which table?"),
        (USERS, ["ladder", "--calibrate"], "a table of its own"),
        (USERS, ["ladder", "some.pcap"], "takes no captures"),
        (USERS, ["ladder", "--rounds", "0"], "not a whole number above 0"),
        (USERS, ["accuracy", "/no/such.pcap", "--quick"], "No such file"),
        (DEVELOPERS, ["ladder"], "no table 'ladder'; 'python -m benches list' names them"),
        (DEVELOPERS, ["xdp", "some.pcap"], "takes no captures"),
        (DEVELOPERS, ["pipeline", "--seed", "1"], "goes with naming, corpus"),
        (DEVELOPERS, ["fit", "/no/such/weights.toml"], "can't be written; nothing was fitted"),
    ],
)
def test_bad_input_gets_one_line(command: list[str], words: list[str], said: str) -> None:
    done = run_bench(*words, command=command)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
