"""What ends in one place: the condition that most of its samples meet, or none."""

from __future__ import annotations

import numpy as np
import pytest

from fwtop.model.rule import Match
from fwtop.model.traffic.counters import Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import Fragment, Hook, PacketBatch
from fwtop.stats.ledger import balance, dominant


def packets(count: int, **columns: int) -> PacketBatch:
    batch = PacketBatch.zeros(count, 8)
    batch.weight[:] = 1.0
    batch.family[:] = 4
    for name, value in columns.items():
        getattr(batch, name)[:] = value
    return batch


def test_a_port_says_more_than_a_protocol() -> None:
    flood = packets(90, protocol=17, dport=53)
    flood.sport[:] = np.arange(90) + 1024
    match, share = dominant(PacketBatch.concat([flood, packets(10, protocol=6, dport=80)])) or (None, 0)
    assert match == Match(protocol=17, dport=53)
    assert share == pytest.approx(0.9)


def test_answers_of_a_reflector_are_named_by_the_port_they_come_from() -> None:
    answers = packets(100, protocol=17, sport=123)
    answers.dport[:] = np.arange(100) + 1024
    assert dominant(answers) == (Match(protocol=17, sport=123), pytest.approx(1.0))


def test_later_fragments_have_no_port() -> None:
    pieces = packets(60, protocol=17, fragment=Fragment.LATER)
    whole = packets(40, protocol=17, sport=53, fragment=Fragment.FIRST)
    assert dominant(PacketBatch.concat([pieces, whole])) == (Match(fragment=True), pytest.approx(1.0))


def test_weights_count_and_a_mixture_is_none() -> None:
    heavy = packets(20, protocol=1)
    heavy.weight[:] = 100.0
    assert dominant(PacketBatch.concat([heavy, packets(200, protocol=6, dport=1)])) == (
        Match(protocol=1),
        pytest.approx(2000 / 2200),
    )
    mixture = [packets(30, protocol=number, dport=number) for number in (6, 17, 132, 1, 47)]
    assert dominant(PacketBatch.concat(mixture)) is None
    assert dominant(packets(5, protocol=17, dport=53)) is None, "too few to say"


def test_rows_are_told_apart_by_the_reason_of_their_samples() -> None:
    drops = (
        DropCount("netfilter", "NETFILTER_DROP", 100, code=7),
        DropCount("socket", "NO_SOCKET", 50, code=3),
    )
    counters = Counters(1.0, 200, 12_000, 50, drops=drops)
    dropped = PacketBatch.concat(
        [
            packets(40, protocol=17, dport=53, reason=7, hook=Hook.DROP),
            packets(40, protocol=6, dport=23, reason=3, hook=Hook.DROP),
        ]
    )
    book = balance(counters, dropped, packets(30, protocol=6, dport=80, hook=Hook.ACCEPTED))
    mostly = {row.layer: row.mostly for row in book.rows}
    assert mostly == {
        "netfilter": Match(protocol=17, dport=53),
        "socket": Match(protocol=6, dport=23),
        "delivered": Match(protocol=6, dport=80),
    }


def test_what_others_drop_beside_a_rule_of_ours_is_not_guessed() -> None:
    drops = (DropCount("netfilter", "NETFILTER_DROP", 100, code=7),)
    counters = Counters(1.0, 100, 6_000, 0, drops=drops, rules=(RuleCount("5", 60, 3_600),))
    dropped = packets(40, protocol=17, dport=53, reason=7, hook=Hook.DROP)
    rows = balance(counters, dropped, PacketBatch.empty()).rows
    assert [(row.rule, row.packets, row.mostly) for row in rows if row.layer == "netfilter"] == [
        ("5", 60, None),
        (None, 40, None),
    ]


def test_rules_take_their_packets_from_those_dropped_before_routing() -> None:
    drops = (DropCount("netfilter", "NETFILTER_DROP", 100, filtered=30),)
    counters = Counters(1.0, 200, 12_000, 100, drops=drops, rules=(RuleCount("7", 60, 3600),))
    book = balance(counters, PacketBatch.empty(8), PacketBatch.empty(8))
    found = {row.rule: (row.packets, row.filtered) for row in book.rows if row.layer == "netfilter"}
    assert found == {"7": (60, 0), None: (40, 30)}


@pytest.mark.parametrize(("early", "mine"), [(5000, 5000), (7000, 5100)])
def test_rules_dropped_all_that_was_dropped_before_routing_if_samples_fit_that(early: int, mine: int) -> None:
    """Samples err by some percent; how many packets were dropped before routing is counted."""
    sampled = PacketBatch.concat([packets(510, reason=7, rule=5), packets(490, reason=7)])
    sampled.weight[:] = 10.0
    drops = (DropCount("netfilter", "NETFILTER_DROP", 10_000, code=7, filtered=10_000 - early),)
    book = balance(Counters(1.0, 10_000, 600_000, 0, drops=drops), sampled, PacketBatch.empty(8))
    found = {row.rule: (row.packets, row.filtered) for row in book.rows if row.layer == "netfilter"}
    assert found == {"5": (mine, 0), None: (10_000 - mine, 10_000 - early)}


@pytest.mark.parametrize(("early", "mine"), [(505, 505), (600, 500)])
def test_what_came_between_reading_samples_and_counters_is_no_foreign_drop(early: int, mine: int) -> None:
    """Every packet is sampled, but the last ones came after the samples were read."""
    sampled = PacketBatch.concat([packets(500, reason=7, rule=5), packets(500, reason=7)])
    drops = (DropCount("netfilter", "NETFILTER_DROP", 1000, code=7, filtered=1000 - early),)
    book = balance(Counters(1.0, 1000, 60_000, 0, drops=drops), sampled, PacketBatch.empty(8))
    found = {row.rule: (row.packets, row.filtered) for row in book.rows if row.layer == "netfilter"}
    assert found == {"5": (mine, 0), None: (1000 - mine, 1000 - early)}


def test_what_a_syn_proxy_answers_is_no_riddle() -> None:
    answered = RuleCount("6", 55, 0, answers=True, early=False)
    counters = Counters(1.0, 100, 6_000, 40, rules=(answered,))
    rows = balance(counters, PacketBatch.empty(), PacketBatch.empty()).rows
    assert {(row.layer, row.rule, row.packets) for row in rows} == {
        ("netfilter", "6", 60),
        ("delivered", None, 40),
    }


def test_a_syn_proxy_that_alone_drops_has_it_all() -> None:
    """Every packet is sampled, and none was dropped before routing."""
    drops = (DropCount("netfilter", "NETFILTER_DROP", 100, code=7, filtered=100),)
    proxy = RuleCount("6", 100, 0, answers=True, early=False)
    rows = balance(
        Counters(1.0, 100, 6_000, 0, drops=drops, rules=(proxy,)), packets(100, reason=7, rule=6), packets(0)
    ).rows
    assert [(row.rule, row.packets) for row in rows if row.packets] == [("6", 100)]


@pytest.mark.parametrize(
    ("watched", "estimated", "rest"),
    [(0.3, 9_900, 0), (0.3, 9_000, 800), (1.0, 9_900, -100), (0.3, 12_000, -2_200)],
    ids=["some more than arrived", "less", "nothing is estimated", "far more"],
)
def test_estimates_of_ends_add_up_to_what_arrived(watched: float, estimated: int, rest: int) -> None:
    """What arrived and what rules dropped in the driver is counted all the time."""
    dropped = estimated - 1_000
    drops = (
        DropCount("xdp", "XDP_DROP", 10_000, rule="5"),
        DropCount("netfilter", "NETFILTER_DROP", dropped, 60_000, code=7, filtered=dropped),
        DropCount("nic", "rx_missed", 300),
    )
    counters = Counters(1.0, 20_000 - 200, 1_200_000, 1_000, drops=drops, watched=watched)
    book = balance(counters, PacketBatch.empty(8), PacketBatch.empty(8))
    ends = {row.layer: row.packets for row in book.rows}
    assert ends.get("unexplained", 0) == pytest.approx(rest, abs=2)
    assert (ends["xdp"], ends["nic"]) == (10_000, 300)
    share = ends["delivered"] / (ends["netfilter"] + ends["delivered"])
    assert share == pytest.approx(1_000 / estimated, rel=0.01)
    assert all(row.filtered <= row.packets for row in book.rows if row.layer != "unexplained")
