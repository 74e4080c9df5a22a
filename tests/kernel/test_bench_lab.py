"""Tables that flood a lab: each measures what it says, and clears up."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_run import check_form, document_of

pytestmark = pytest.mark.kernel


def test_calibrating_prints_every_kind_with_its_cost() -> None:
    document = document_of("calibrate", "--quick", "--rounds", "1", "--json")
    check_form(document, "calibrate")
    assert {row["name"] for row in document["rows"]} >= {"xdp", "ipset", "hashlimit", "string", "notrack"}
    assert {row["unit"] for row in document["rows"]} == {"ns a packet"}


def test_a_rule_that_blocks_clients_hurts_them_as_foretold(installed: Path) -> None:
    document = document_of("harm", "ipset-block", "--quick", "--json", command=[str(installed)])
    figures = {row["name"].removeprefix("ipset-block: "): row["median"] for row in document["rows"]}
    assert figures["success before"] > 0.95
    assert 0.1 < figures["suffered"] < 0.4  # 4 of 12 IPv4 clients and 4 IPv6 ones lose all that they do
    assert figures["foretold by guess"] == pytest.approx(figures["suffered"], abs=0.12)
    assert figures["success with the rule"] == pytest.approx(1 - figures["suffered"], abs=0.12)
    left = [entry.name for entry in Path("/run/netns").glob("fwtop-lab-*")]
    running = {path.name for path in Path("/run/fwtop-lab").glob("*")}
    assert [name for name in left if name.split("-")[2] not in running] == []
