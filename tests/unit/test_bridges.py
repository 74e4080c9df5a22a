"""Which bridges pass by what is watched: the machine's own, a filtering bridge, containers'."""

from __future__ import annotations

from fwtop.kernel.bridges import crossed, unwatched
from fwtop.kernel.links import Link, LinkStats

NOTHING = LinkStats(0, 0, 0, 0, 0)


def link(index: int, name: str, kind: str = "", master: int = 0) -> Link:
    return Link(index, name, True, True, False, 0, master, NOTHING, kind)


MANAGEMENT = link(2, "eth0")
FILTER = [link(3, "eth1", master=5), link(4, "eth2", master=5), link(5, "br0", "bridge")]
CONTAINERS = [link(6, "veth1", "veth", 8), link(7, "veth2", "veth", 8), link(8, "docker0", "bridge")]
LINKS = [MANAGEMENT, *FILTER, *CONTAINERS]


def names(bridges: list) -> list[str]:
    return [bridge.words for bridge in bridges]


def test_a_filtering_bridge_beside_the_management_port_is_named_and_containers_are_not() -> None:
    assert names(unwatched(LINKS, [MANAGEMENT])) == ["br0 (eth1, eth2)"]
    assert crossed(LINKS, [MANAGEMENT]) == []


def test_a_bridge_is_watched_at_its_ports() -> None:
    assert names(unwatched(LINKS, [FILTER[2]])) == names(crossed(LINKS, [FILTER[2]])) == ["br0 (eth1, eth2)"]
    assert unwatched(LINKS, [FILTER[0]]) == []
    assert names(crossed(LINKS, [FILTER[0]])) == ["br0 (eth1, eth2)"]


def test_a_bridge_with_one_port_passes_nothing_on() -> None:
    assert unwatched([MANAGEMENT, FILTER[0], FILTER[2]], [FILTER[2]]) == []
