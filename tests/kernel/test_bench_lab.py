"""Tables that flood a lab: plausible figures, and nothing left behind."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from bench_run import DEVELOPERS, check_form, document_of

pytestmark = pytest.mark.kernel
SECONDS = 5.0  # that `walk --quick` compares


@pytest.mark.matrix  # a developers' table; test_whole_program presses the keys
def test_three_keys_protect_and_the_screen_agrees_with_the_victim() -> None:
    document = document_of("walk", "syn_flood", "--quick", "--json", command=DEVELOPERS)
    check_form(document, "walk")
    figures = {row["name"].removeprefix("syn_flood at "): row["median"] for row in document["rows"]}
    assert figures["80×24: keys pressed"] <= 3
    for name in ("80×24: reaches you", "80×24: clients"):
        counted = figures[f"{name}, victim's counters"]
        # A busy screen shows a window that was over a second ago: clients come by chance, so four deviations
        noise = max(0.05 * counted, 4 * math.sqrt(counted / SECONDS))
        assert figures[f"{name}, screen"] == pytest.approx(counted, abs=noise)


def test_blocking_clients_harms_them_as_predicted(installed: Path) -> None:
    document = document_of("harm", "ipset-block", "--quick", "--json", command=[str(installed), "bench"])
    figures = {row["name"].removeprefix("ipset-block: "): row["median"] for row in document["rows"]}
    assert figures["clients cut"] == 4 / 17  # 12 with IPv4, 4 with IPv6 and the operator; tries are by clock
    assert 0.1 < figures["predicted by guess"] < 0.4
    assert figures["measured"] > 0.1
    left = [entry.name for entry in Path("/run/netns").glob("fwtop-lab-*")]
    running = {path.name for path in Path("/run/fwtop-lab").glob("*")}
    assert [name for name in left if name.split("-")[2] not in running] == []


@pytest.mark.matrix  # a developers' table; test_bridge_router and test_resolver_lab install what is proposed
def test_proposals_stop_what_they_promise_and_are_taken_down() -> None:
    document = document_of("proposals", "few_sources", "--quick", "--json", command=DEVELOPERS)
    *rules, difference = document["rows"]
    assert [row["name"].split(": ")[2] for row in rules] == ["predicted", "stopped"] * 2
    assert all(row["median"] > 0.9 for row in rules)
    assert difference["high"] <= 10
    left = [entry.name for entry in Path("/run/netns").glob("fwtop-lab-*")]
    running = {path.name for path in Path("/run/fwtop-lab").glob("*")}
    assert [name for name in left if name.split("-")[2] not in running] == []
