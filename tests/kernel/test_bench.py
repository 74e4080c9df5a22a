"""`fwtop bench` as a person runs it: the document's form, and that a lab's table measures and clears up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fwtop.bench.tables import TABLES
from fwtop.model.paths import ROOT

pytestmark = pytest.mark.kernel
_DOCUMENT = {"table": str, "machine": str, "kernel": str, "rounds": int, "rows": list, "notes": list}
_ROW = {"name", "unit", "median", "low", "high", "ratio", "versus"}


_CLONE = [sys.executable, "-m", "fwtop"]


def _bench(
    *words: str, command: Sequence[str] = _CLONE, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "bench", *words],
        capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _document(*words: str, command: Sequence[str] = _CLONE) -> dict[str, Any]:
    done = _bench(*words, command=command)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _check(document: dict[str, Any], table: str) -> None:
    assert {key: type(value) for key, value in document.items()} == _DOCUMENT
    assert document["table"] == table
    names = [row["name"] for row in document["rows"]]
    assert len(names) == len(set(names)) > 1
    for row in document["rows"]:
        assert set(row) - {"published_ratio"} == _ROW
        assert 0 < row["low"] <= row["median"] <= row["high"]
        assert (row["ratio"] is None) == (row["versus"] is None)
        assert row["versus"] is None or row["versus"] in names


def test_a_quick_pipeline_prints_one_document_and_its_progress_elsewhere() -> None:
    _check(_document("pipeline", "--quick", "--rounds", "1", "--json"), "pipeline")


def test_calibrating_prints_every_kind_with_its_cost() -> None:
    document = _document("calibrate", "--quick", "--rounds", "1", "--json")
    _check(document, "calibrate")
    assert {row["name"] for row in document["rows"]} >= {"xdp", "ipset", "hashlimit", "string", "notrack"}
    assert {row["unit"] for row in document["rows"]} == {"ns a packet"}


def test_a_rule_that_blocks_clients_hurts_them_as_foretold(installed: Path) -> None:
    document = _document("harm", "ipset-block", "--quick", "--json", command=[str(installed)])
    figures = {row["name"].removeprefix("ipset-block: "): row["median"] for row in document["rows"]}
    assert figures["success before"] > 0.95
    assert 0.1 < figures["suffered"] < 0.4  # 4 of 12 IPv4 clients and 4 IPv6 ones lose all that they do
    assert figures["foretold by guess"] == pytest.approx(figures["suffered"], abs=0.12)
    assert figures["success with the rule"] == pytest.approx(1 - figures["suffered"], abs=0.12)
    left = [entry.name for entry in Path("/run/netns").glob("fwtop-lab-*")]
    running = {path.name for path in Path("/run/fwtop-lab").glob("*")}
    assert [name for name in left if name.split("-")[2] not in running] == []


def test_every_table_of_the_list_has_its_module() -> None:
    listed = json.loads(_bench("list", "--json").stdout)
    assert [entry["table"] for entry in listed] == [table.name for table in TABLES]
    assert all((ROOT / "fwtop/bench" / f"{entry['table']}.py").is_file() for entry in listed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "no table 'nonsense'"),
        ([], "which table?"),
        (["ladder", "--calibrate"], "a table of its own"),
        (["xdp", "some.pcap"], "takes no captures"),
        (["pipeline", "--rounds", "0"], "not a whole number above 0"),
        (["accuracy", "/no/such.pcap", "--quick"], "No such file"),
    ],
)
def test_bad_input_gets_one_line(words: list[str], said: str) -> None:
    done = _bench(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
