"""Rules behind the reassembly of datagrams: what they promise of an attack in fragments."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from analysis_factory import make_batch, make_frames, make_tables, make_window
from test_analysis_propose import rule

from fwtop.analysis.proposals.preview import preview
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.packets import Fragment, Window

ANSWERS: dict[str, Any] = {
    "src": "60",
    "sport": 53,
    "dport": 22,
    "payload": "answer pizzaseo.com 46 3000",
    "fragment": 1480,
    "count": 1500,
}
NAME = PayloadMatch(b"pizzaseo")
SECONDS = 5.0


def window(*, tracked: bool, every: int = 1) -> Window:
    frames = make_frames([ANSWERS, {"make": "connections", "src": "60", "count": 40}], SECONDS)
    rng = Random(every)
    batch = make_batch([frame for frame in frames if rng.random() * every < 1], weight=float(every))
    table = ConntrackSample(1_000, 65_536, 50.0) if tracked else None
    return make_window(batch, SECONDS, live=True, conntrack=table)


def share(one: Rule, *, tracked: bool = True, every: int = 1) -> float:
    return preview(one, window(tracked=tracked, every=every)).attack_share


@pytest.mark.parametrize("every", [1, 3, 7], ids=["all", "one_in_3", "one_in_7"])
def test_a_rule_behind_reassembly_drops_whole_datagrams(every: int) -> None:
    for match in (Match(protocol=17, sport=53), Match(protocol=17, payload=(NAME,))):
        assert share(rule(Kind.STRING, match), every=every) > 0.97
        assert share(rule(Kind.STRING, match), tracked=False, every=every) == pytest.approx(1 / 3, abs=0.05)
        assert share(rule(Kind.XDP, match), every=every) == pytest.approx(1 / 3, abs=0.05)


def test_behind_reassembly_there_are_no_fragments() -> None:
    fragments = Match(protocol=17, fragment=True)
    assert share(rule(Kind.IPSET, fragments)) == 0.0
    assert share(rule(Kind.XDP, fragments)) > 0.97


def test_a_rule_for_some_senders_drops_their_datagrams_only() -> None:
    packets = window(tracked=True).arrived
    heads = packets.fragment == Fragment.FIRST
    some = tuple({Prefix.of_columns(4, 0, int(lo)) for lo in packets.src_lo[heads][:40]})
    inside = sum(packets.src_lo[heads] == some_one.lo for some_one in some).mean()
    found = share(rule(Kind.STRING, Match(sources=some, protocol=17, sport=53)))
    assert found == pytest.approx(float(inside), abs=0.05)


def test_what_is_proposed_counts_them() -> None:
    seen = window(tracked=True)
    judgement = Advisor().judge(seen, make_tables(seen))
    best = {p.kind: p.attack_share for p in reversed(judgement.proposals)}
    assert best["string"] > 0.95
