"""What rules in the driver and at tc ingress add to an interval: each packet once, where it ended."""

import numpy as np

from fwtop.collect.cell import CLASSES
from fwtop.collect.xdp_counts import XdpInterval
from fwtop.model.counters import Counters, DropCount

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
