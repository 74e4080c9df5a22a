"""What the table of proposals compares: which of them are tried, and against what they are counted."""

from __future__ import annotations

from typing import Any

import pytest

from benches.tables.proposals import Counts, Promise, chosen, compared, missed, offered, run, to_document
from fwtop.bench.frame import Options
from fwtop.model.errors import FwtopError

_BEFORE, _AFTER = Counts(frames=1_000, datagrams=900, dropped=7), Counts(41_000, 20_900, 19_007)


def _proposal(number: int, kind: str = "xdp", attack: str = "UDP flood", **fields: Any) -> dict[str, Any]:
    words = {"summary": f"proposal {number} (evaded by: all)", "fwtop": f"fwtop apply {number}"}
    return {"n": number, "kind": kind, "attack": attack, "attack_share": 0.95, **words, **fields}


def _promise(predicted: float, dropped: int) -> Promise:
    return Promise("few_sources", 1, "xdp", "drop", predicted, dropped, came=1_000)


def test_the_first_two_rules_against_the_attack_are_tried() -> None:
    proposals = [
        _proposal(1, "upstream", fwtop=""),  # advice
        _proposal(2, "harden", attack_share=0.0),  # drops nothing
        _proposal(3, attack="port scan"),  # a small part of the traffic
        _proposal(4),  # a list that no command line holds
        _proposal(5, "ipset", fwtop="fwtop block 192.0.2.0/24"),
        _proposal(6),
    ]
    attacks = [{"title": "UDP flood", "share": 0.98}, {"title": "port scan", "share": 0.01}]
    found = offered({"attacks": attacks, "proposals": proposals})
    assert [proposal["n"] for proposal in found] == [4, 5]


@pytest.mark.parametrize(
    ("kind", "came"),
    [("xdp", 40_000), ("tc", 40_000), ("nftables", 40_000), ("string", 20_000), ("harden", 20_000)],
)
def test_rules_behind_reassembly_are_compared_by_datagrams(kind: str, came: int) -> None:
    promise = compared("dns_amplification", _proposal(1, kind), _BEFORE, _AFTER)
    assert (promise.dropped, promise.came) == (19_000, came)
    assert promise.stopped == pytest.approx(19_000 / came)
    assert promise.points == pytest.approx(abs(95 - 1_900_000 / came))


def test_a_rule_that_nothing_came_to_is_told_and_not_counted(monkeypatch) -> None:
    unmet = compared("udp_flood_vlan", _proposal(1, "string"), _BEFORE, _BEFORE)
    monkeypatch.setattr("benches.tables.proposals.try_scenario", lambda *_: [_promise(1.0, 980), unmet])
    document = run(Options(captures=("udp_flood_vlan",)))
    assert document.results[-1].values == pytest.approx((2.0,))
    assert "udp_flood_vlan: predicted 95.0%, but the kernel drops the flood before it" in document.notes[0]


def test_the_last_line_has_median_and_worst() -> None:
    document = to_document([_promise(0.97, 540), _promise(1.0, 990), _promise(1.0, 980)], ["a note"])
    assert document.lines[-1] == "3 proposals of 1 scenario: off by 2.0 points in the median, 43.0 at worst"
    assert document.results[-1].to_json()["median"] == pytest.approx(2.0)
    assert document.results[-1].to_json()["high"] == pytest.approx(43.0)
    assert document.notes == ("a note", "A8 few_sources: predicted 97.0%, stopped 54.0%: drop")


def test_a_median_that_is_too_far_off_is_said() -> None:
    assert missed([_promise(1.0, 960)] * 2) == ["A8: 4.0 points off in the median"]
    assert missed([_promise(1.0, 980)] * 2) == []


def test_scenarios_are_chosen_by_name() -> None:
    assert len(chosen((), quick=False)) >= 40
    assert set(quick := chosen((), quick=True)) <= set(chosen((), quick=False))
    assert len(quick) == 8
    assert chosen(("syn_flood",), quick=True) == ["syn_flood"]
    for name in ("calm", "nonsense"):
        with pytest.raises(FwtopError, match="no scenario of one attack"):
            chosen((name,), quick=False)
