"""The lab's cable, addresses, neighbours and routes, laid by netlink.

The namespaces are named ones; each netlink socket stays in the one in which it was opened (network_namespaces
(7)). pyroute2 is imported here only, as it takes longer to load than anything else that a lab needs.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from fwtop.lab import network as net
from fwtop.lab.entering import NETNS, inside
from fwtop.lab.network import Wire
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_NO_DAD = 0x02  # IFA_F_NODAD: usable at once, nobody else has it
_LOCAL_TABLE = 255
_QUEUES = {"num_rx_queues": 1, "num_tx_queues": 1}


@contextlib.contextmanager
def _netlink(own: str) -> Iterator[Any]:
    """Open a netlink socket in a namespace; what the kernel refuses raises FwtopError."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with inside(own):
        route = IPRoute()
    try:
        yield route
    except NetlinkError as error:
        raise FwtopError(
            f"the lab's network in {own}: {safe_text(error)}; the lab is taken down again"
        ) from None
    finally:
        route.close()


def lay(victim: str, attacker: str, clients: list[str], vlans: list[int]) -> Wire:
    """Connect both namespaces and configure all on either end; returns the hardware addresses."""
    with _netlink(victim) as near, _netlink(attacker) as far:
        _cable(far, victim)
        ends = (
            near.link_lookup(ifname=net.VICTIM_INTERFACE)[0],
            far.link_lookup(ifname=net.ATTACKER_INTERFACE)[0],
        )
        wire = Wire(_hardware(near, ends[0]), _hardware(far, ends[1]))
        _configure_victim(near, ends[0], victim, wire)
        for vlan in vlans:
            _add_vlan(near, ends[0], vlan)
        _configure_attacker(far, ends[1], attacker, wire, clients)
        return wire


def _cable(far: Any, victim: str) -> None:  # noqa: ANN401 - pyroute2 has no types
    there = os.open(NETNS / victim, os.O_RDONLY | os.O_CLOEXEC)
    try:
        peer = {"ifname": net.VICTIM_INTERFACE, "net_ns_fd": there, **_QUEUES}
        far.link("add", ifname=net.ATTACKER_INTERFACE, kind="veth", peer=peer, **_QUEUES)
    finally:
        os.close(there)


def _hardware(route: Any, index: int) -> bytes:  # noqa: ANN401
    return bytes.fromhex(str(route.get_links(index)[0].get_attr("IFLA_ADDRESS")).replace(":", ""))


def _configure_victim(route: Any, index: int, mark: str, wire: Wire) -> None:  # noqa: ANN401
    loopback = _start(route, index, mark)
    route.addr("add", index=index, address=net.VICTIM_4, prefixlen=net.LENGTH_4)
    route.addr("add", index=index, address=net.VICTIM_6, prefixlen=net.LENGTH_6, flags=_NO_DAD)
    wide = str(net.WIDE_4).partition("/")[0]
    route.addr("add", index=loopback, address=wide, prefixlen=net.WIDE_4.length)
    route.link("set", index=index, state="up")
    _know(route, index, wire.attacker, (net.GATEWAY_4, net.GATEWAY_6))
    route.route("add", dst="0.0.0.0/0", gateway=net.GATEWAY_4)
    route.route("add", dst="::/0", gateway=net.GATEWAY_6)
    local = {"type": "local", "table": _LOCAL_TABLE, "family": socket.AF_INET6}
    route.route("add", dst=str(net.WIDE_6), oif=loopback, **local)


def _configure_attacker(route: Any, index: int, mark: str, wire: Wire, clients: list[str]) -> None:  # noqa: ANN401
    loopback = _start(route, index, mark)
    route.addr("add", index=index, address=net.GATEWAY_4, prefixlen=net.LENGTH_4)
    route.addr("add", index=index, address=net.GATEWAY_6, prefixlen=net.LENGTH_6, flags=_NO_DAD)
    route.link("set", index=index, state="up")
    first, second = net.PARKED_INTERFACES
    route.link("add", ifname=first, kind="veth", peer=second)
    _know(route, index, wire.victim, (net.VICTIM_4, net.VICTIM_6))
    route.route("add", dst=str(net.WIDE_4), gateway=net.VICTIM_4)
    route.route("add", dst=str(net.WIDE_6), gateway=net.VICTIM_6)
    for client in clients:
        route.addr("add", index=loopback, address=client, prefixlen=128 if ":" in client else 32)


def _start(route: Any, index: int, mark: str) -> int:  # noqa: ANN401
    """Mark the lab's interface with its namespace's name, and return the loopback, which is up."""
    loopback = int(route.link_lookup(ifname="lo")[0])
    route.link("set", index=loopback, state="up")
    route.link("set", index=index, ifalias=mark)
    return loopback


def _know(route: Any, index: int, hardware: bytes, hosts: tuple[str, ...]) -> None:  # noqa: ANN401
    """Enter neighbours for good: nobody answers for them under a flood."""
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        address = hardware.hex(":")
        route.neigh("replace", ifindex=index, dst=host, lladdr=address, family=family, state="permanent")


def _add_vlan(route: Any, index: int, vlan: int) -> None:  # noqa: ANN401
    """Give the victim the VLAN's interface; a kernel without 802.1Q drops the tagged packets instead."""
    from pyroute2.netlink.exceptions import NetlinkError

    name = f"{net.VICTIM_INTERFACE}.{vlan}"
    with contextlib.suppress(NetlinkError):
        route.link("add", ifname=name, link=index, kind="vlan", vlan_id=vlan)
        route.link("set", index=route.link_lookup(ifname=name)[0], state="up")
