"""What rules in the driver and at tc ingress add to an interval: each packet once, where it ended."""

from dataclasses import replace

import numpy as np

from fwtop.aggregate.ledger import balance
from fwtop.collect.cell import CLASSES
from fwtop.collect.xdp_counts import XdpInterval, grown_by_rule
from fwtop.model.counters import Counters, DropCount
from fwtop.model.packets import PacketBatch

SEEN = Counters(  # by the observers at tc ingress, which a packet that XDP dropped never reaches
    1.0, 100, 6000, protocols={"udp": (100, 6000)}, drops=(DropCount("tc", "TC_INGRESS", 40, 2400),)
)


def interval(udp: int, rules: dict[str, tuple[int, int]], at_tc: frozenset[str]) -> XdpInterval:
    classes = np.zeros((len(CLASSES), 2), np.int64)
    classes[CLASSES.index("udp")] = udp, 60 * udp
    return XdpInterval(rules, classes, 0, at_tc)


def rows(counters: Counters) -> list[tuple[str, int, str | None]]:
    return sorted((drop.layer, drop.packets, drop.rule) for drop in counters.drops)


def test_rules_at_both_hooks_keep_their_own_packets() -> None:
    found = interval(60, {"1": (60, 3600), "2": (40, 2400)}, frozenset({"2"})).added_to(SEEN)
    assert rows(found) == [("tc", 40, "2"), ("xdp", 60, "1")]
    assert (found.arrived_packets, found.arrived_bytes) == (160, 9600)
    assert found.protocols == {"udp": (160, 9600)}


def test_a_rule_for_xdp_that_had_to_go_to_tc_on_one_interface_is_split() -> None:
    found = interval(60, {"1": (100, 6000)}, frozenset()).added_to(SEEN)
    assert rows(found) == [("tc", 40, "1"), ("xdp", 60, "1")]
    assert found.arrived_packets == 160


def test_rules_at_tc_only_add_nothing_that_arrived() -> None:
    found = interval(0, {"2": (40, 2400)}, frozenset({"2"})).added_to(SEEN)
    assert rows(found) == [("tc", 40, "2")]
    assert found.arrived_packets == 100


def test_a_rule_in_anothers_slot_counts_from_nothing() -> None:
    before, after = np.array([[1000, 60_000], [0, 0]]), np.array([[7, 420], [5, 300]])
    assert grown_by_rule(np.array([9, 4]), after, np.array([3, 0]), before) == {"9": (7, 420), "4": (5, 300)}


def test_a_rule_keeps_counting_and_its_last_hits_are_told_when_it_is_gone() -> None:
    before, after = np.array([[1000, 60_000]]), np.array([[1007, 60_420]])
    for number in (3, 0):
        assert grown_by_rule(np.array([number]), after, np.array([3]), before) == {"3": (7, 420)}
    assert grown_by_rule(np.array([0]), after, np.array([0]), before) == {}


def unexplained(counters: Counters) -> int:
    none = PacketBatch.empty()
    return sum(row.packets for row in balance(counters, none, none).rows if row.layer == "unexplained")


def test_windows_that_missed_a_rule_at_tc_give_way_to_its_own_count() -> None:
    """The rule went in after the last window, which saw netfilter drop three of four."""
    drops = (DropCount("netfilter", "NETFILTER_DROP", 750, 45_000), DropCount("nic", "RX_DROPPED", 99))
    seen = Counters(1.0, 1000, 60_000, accepted_packets=250, drops=drops, watched=0.1)
    found = interval(0, {"2": (600, 36_000)}, frozenset({"2"})).added_to(seen)
    assert rows(found) == [("netfilter", 300, None), ("nic", 99, None), ("tc", 600, "2")]
    assert found.accepted_packets == 100
    assert unexplained(found) == 0


def test_a_rules_counter_that_was_read_late_tells_nothing_twice() -> None:
    """The interval before has told the ten that its rule's counter was behind."""
    found = interval(0, {"2": (50, 3000)}, frozenset({"2"})).added_to(replace(SEEN, accepted_packets=60))
    assert rows(found) == [("tc", 40, "2")]
    assert unexplained(found) == 0
    windows = replace(SEEN, accepted_packets=60, watched=0.1)
    found = interval(0, {"2": (110, 6600)}, frozenset({"2"})).added_to(windows)
    assert rows(found) == [("tc", 100, "2")]
    assert unexplained(found) == 0
