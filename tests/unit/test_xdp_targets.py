"""The interfaces to attach to in order to see the packets of another one."""

from fwtop.kernel.links import Link, LinkStats
from fwtop.xdp.attach import Target, targets

_NONE = LinkStats(0, 0, 0, 0, 0)


def link(index: int, name: str, *, below: int = 0, master: int = 0, kind: str = "") -> Link:
    return Link(index, name, True, True, False, below, master, _NONE, kind)


ETH0, ETH1 = link(1, "eth0", master=3), link(2, "eth1", master=3)
BOND0 = link(3, "bond0", kind="bond")
TAGGED = link(4, "bond0.100", below=3, kind="vlan")
TWICE = link(5, "bond0.100.7", below=4, kind="vlan")
MACVLAN = link(6, "mac0", below=1, kind="macvlan")
BRIDGE, PORT = link(7, "br0", kind="bridge"), link(8, "eth2", master=7)
LINKS = [ETH0, ETH1, BOND0, TAGGED, TWICE, MACVLAN, BRIDGE, PORT]


def test_a_vlan_is_attached_to_below_it_and_a_bond_at_its_members() -> None:
    assert targets(LINKS, [TAGGED]) == [Target(BOND0, "bond0.100", (ETH0, ETH1))]
    assert targets(LINKS, [TWICE]) == [Target(BOND0, "bond0.100.7", (ETH0, ETH1))]
    assert targets(LINKS, [BOND0]) == [Target(BOND0, "", (ETH0, ETH1))]


def test_targets_are_unique_and_the_requested_interface_wins() -> None:
    assert targets(LINKS, [TAGGED, TWICE, BOND0]) == [Target(BOND0, "", (ETH0, ETH1))]


def test_other_interfaces_are_their_own_targets() -> None:
    assert targets(LINKS, [BRIDGE, MACVLAN, PORT]) == [Target(BRIDGE), Target(MACVLAN), Target(PORT)]


def test_a_vlan_whose_lower_interface_is_in_another_namespace_is_its_own_target() -> None:
    assert targets([TAGGED], [TAGGED]) == [Target(TAGGED)]
