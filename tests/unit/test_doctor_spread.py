"""What the doctor reads from ethtool about where packets are steered to; texts as ethtool 6.1 prints them."""

from collections.abc import Callable

from fwtop.cli.doctor.checks import OK, WARNING
from fwtop.cli.doctor.interfaces import spread, steering

TABLE = """RX flow hash indirection table for eth0 with 4 RX ring(s):
    0:      {0}     {1}     {2}     {3}     {0}     {1}     {2}     {3}
    8:      {0}     {1}     {2}     {3}     {0}     {1}     {2}     {3}
RSS hash key:
6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0
RSS hash function:
    toeplitz: on
"""
BY_ADDRESS = "UDP over IPV4 flows use these fields for computing Hash flow key:\nIP SA\nIP DA\n\n"
BY_PORT = BY_ADDRESS.rstrip() + "\nL4 bytes 0 & 1 [TCP/UDP src port]\nL4 bytes 2 & 3 [TCP/UDP dst port]\n\n"


def prints(table: str, udp: str) -> Callable[..., str]:
    return lambda option, *_: {"-x": table, "-n": udp}[option]


def test_a_table_over_all_queues_and_ports_in_the_hash() -> None:
    found = list(spread("g", "eth0", prints(TABLE.format(0, 1, 2, 3), BY_PORT)))
    assert [(check.name, check.state) for check in found] == [("RSS", OK)]


def test_queues_left_out_and_addresses_only() -> None:
    found = list(spread("g", "eth0", prints(TABLE.format(0, 1, 0, 1), BY_ADDRESS)))
    assert [(check.state, check.mend) for check in found] == [
        (WARNING, "ethtool -X eth0 equal 4"),
        (WARNING, "ethtool -N eth0 rx-flow-hash udp4 sdfn"),
        (WARNING, "ethtool -N eth0 rx-flow-hash udp6 sdfn"),
    ]
    assert "2 of 4 queues" in found[0].detail


def test_a_driver_that_tells_nothing() -> None:
    assert list(spread("g", "eth0", prints("", ""))) == []


def test_one_queue_has_nothing_to_be_spread_over() -> None:
    one = "RX flow hash indirection table for eth0 with 1 RX ring(s):\nOperation not supported\n"
    assert list(spread("g", "eth0", prints(one, BY_ADDRESS))) == []


def test_whether_the_card_drops_by_rules_on_flows() -> None:
    def told(features: str, rules: str) -> list[str]:
        texts = {"-k": f"Features for eth0:\n{features}\nreceive-hashing: on\n", "-n": rules}
        return [check.detail for check in steering("g", "eth0", lambda option, _: texts[option])]

    takes = "4 RX rings available\nTotal 2 rules\n\nFilter: 1023\n"
    (can,) = told("ntuple-filters: on", takes)
    assert can.startswith(
        "takes rules on flows, 2 in place: 'ethtool -N eth0 flow-type udp4 dst-port 9 action -1'"
    )
    assert told("ntuple-filters: off", "") == [
        "off: with 'ethtool -K eth0 ntuple on' the card may drop by rules on flows"
    ]
    assert told("ntuple-filters: off [fixed]", "") == [
        "the card takes no rules on flows: it can't drop packets itself"
    ]
    assert told("", "") == []
