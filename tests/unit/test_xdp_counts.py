"""Drops by rules in the driver and at tc ingress are added to an interval, each packet once."""

import numpy as np
from msgspec.structs import replace

from fwtop.model.traffic.counters import TRAFFIC_CLASSES, Counters, DropCount
from fwtop.model.traffic.packets import PacketBatch
from fwtop.stats.ledger import balance
from fwtop.xdp.counts import XdpInterval, grown_by_rule

SEEN = Counters(  # by the observers at tc ingress, which a packet that XDP dropped never reaches
    1.0, 100, 6000, protocols={"udp": (100, 6000)}, drops=(DropCount("tc", "TC_INGRESS", 40, 2400),)
)


def interval(udp: int, rules: dict[str, tuple[int, int]], at_tc: frozenset[str]) -> XdpInterval:
    classes = np.zeros((len(TRAFFIC_CLASSES), 2), np.int64)
    classes[TRAFFIC_CLASSES.index("udp")] = udp, 60 * udp
    return XdpInterval(rules, classes, 0, at_tc)


def rows(counters: Counters) -> list[tuple[str, int, str | None]]:
    return sorted((drop.layer, drop.packets, drop.rule) for drop in counters.drops)


def test_rules_at_both_hooks_keep_their_own_packets() -> None:
    found = interval(60, {"1": (60, 3600), "2": (40, 2400)}, frozenset({"2"})).added_to(SEEN)
    assert rows(found) == [("tc", 40, "2"), ("xdp", 60, "1")]
    assert (found.arrived_packets, found.arrived_bytes) == (160, 9600)
    assert found.protocols == {"udp": (160, 9600)}


def test_drops_of_a_rule_at_xdp_and_at_tc_are_split() -> None:
    found = interval(60, {"1": (100, 6000)}, frozenset()).added_to(SEEN)
    assert rows(found) == [("tc", 40, "1"), ("xdp", 60, "1")]
    assert found.arrived_packets == 160


def test_rules_at_tc_only_add_no_arrivals() -> None:
    found = interval(0, {"2": (40, 2400)}, frozenset({"2"})).added_to(SEEN)
    assert rows(found) == [("tc", 40, "2")]
    assert found.arrived_packets == 100


def test_a_rule_in_a_reused_slot_counts_from_zero() -> None:
    before, after = np.array([[1000, 60_000], [0, 0]]), np.array([[7, 420], [5, 300]])
    assert grown_by_rule(np.array([9, 4]), after, np.array([3, 0]), before) == {"9": (7, 420), "4": (5, 300)}


def test_the_last_drops_of_a_removed_rule_are_counted() -> None:
    before, after = np.array([[1000, 60_000]]), np.array([[1007, 60_420]])
    for number in (3, 0):
        assert grown_by_rule(np.array([number]), after, np.array([3]), before) == {"3": (7, 420)}
    assert grown_by_rule(np.array([0]), after, np.array([0]), before) == {}


def unexplained(counters: Counters) -> int:
    none = PacketBatch.empty()
    return sum(row.packets for row in balance(counters, none, none).rows if row.layer == "unexplained")


def test_exact_drops_at_tc_replace_what_windows_missed() -> None:
    """The rule was installed after the last window, which saw netfilter drop three of four."""
    drops = (DropCount("netfilter", "NETFILTER_DROP", 750, 45_000), DropCount("nic", "RX_DROPPED", 99))
    seen = Counters(1.0, 1000, 60_000, accepted_packets=250, drops=drops, watched=0.1)
    found = interval(0, {"2": (600, 36_000)}, frozenset({"2"})).added_to(seen)
    assert rows(found) == [("netfilter", 300, None), ("nic", 99, None), ("tc", 600, "2")]
    assert found.accepted_packets == 100
    assert unexplained(found) == 0


def test_a_rules_counter_that_lags_counts_nothing_twice() -> None:
    """The interval before included the ten packets by which the rule's counter lagged."""
    found = interval(0, {"2": (50, 3000)}, frozenset({"2"})).added_to(replace(SEEN, accepted_packets=60))
    assert rows(found) == [("tc", 40, "2")]
    assert unexplained(found) == 0
    windows = replace(SEEN, accepted_packets=60, watched=0.1)
    found = interval(0, {"2": (110, 6600)}, frozenset({"2"})).added_to(windows)
    assert rows(found) == [("tc", 100, "2")]
    assert unexplained(found) == 0
