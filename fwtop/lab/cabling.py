"""The lab's veth pair, addresses, neighbours and routes, set up over netlink.

A netlink socket stays in the namespace it was opened in (network_namespaces(7)). pyroute2 is imported only
here, and late, because it loads more slowly than everything else that a lab needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from fwtop.kernel.descriptors import closing
from fwtop.kernel.namespaces import NETNS, inside
from fwtop.lab import network as net
from fwtop.lab.network import Wire
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_NO_DAD = 0x02  # IFA_F_NODAD: usable at once
_LOCAL_TABLE = 255
_QUEUES = {"num_rx_queues": 1, "num_tx_queues": 1}


@contextlib.contextmanager
def _netlink(own: str) -> Iterator[Any]:
    """Open a netlink socket in a namespace; kernel errors within the block raise FwtopError."""
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


def connect(victim: str, attacker: str, clients: list[str], vlans: list[int]) -> Wire:
    """Connect both namespaces and configure both ends; return the MAC addresses."""
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
    with closing(os.open(NETNS / victim, os.O_RDONLY | os.O_CLOEXEC)) as there:
        peer = {"ifname": net.VICTIM_INTERFACE, "net_ns_fd": there, **_QUEUES}
        far.link("add", ifname=net.ATTACKER_INTERFACE, kind="veth", peer=peer, **_QUEUES)


def _hardware(route: Any, index: int) -> bytes:  # noqa: ANN401
    return bytes.fromhex(str(route.get_links(index)[0].get_attr("IFLA_ADDRESS")).replace(":", ""))


def _configure_victim(route: Any, index: int, mark: str, wire: Wire) -> None:  # noqa: ANN401
    loopback = _start(route, index, mark)
    route.addr("add", index=index, address=net.VICTIM_4, prefixlen=net.LENGTH_4)
    route.addr("add", index=index, address=net.VICTIM_6, prefixlen=net.LENGTH_6, flags=_NO_DAD)
    wide = str(net.WIDE_4).partition("/")[0]
    route.addr("add", index=loopback, address=wide, prefixlen=net.WIDE_4.length)
    route.link("set", index=index, state="up")
    _add_neighbours(route, index, wire.attacker, (net.GATEWAY_4, net.GATEWAY_6))
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
    _add_neighbours(route, index, wire.victim, (net.VICTIM_4, net.VICTIM_6))
    route.route("add", dst=str(net.WIDE_4), gateway=net.VICTIM_4)
    route.route("add", dst=str(net.WIDE_6), gateway=net.VICTIM_6)
    for client in clients:
        route.addr("add", index=loopback, address=client, prefixlen=128 if ":" in client else 32)


def _start(route: Any, index: int, mark: str) -> int:  # noqa: ANN401
    """Set the interface's alias to its namespace's name; bring the loopback up and return its index."""
    loopback = int(route.link_lookup(ifname="lo")[0])
    route.link("set", index=loopback, state="up")
    route.link("set", index=index, ifalias=mark)
    return loopback


def _add_neighbours(route: Any, index: int, hardware: bytes, hosts: tuple[str, ...]) -> None:  # noqa: ANN401
    """Add permanent neighbour entries: nobody answers ARP or discovery under a flood."""
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        address = hardware.hex(":")
        route.neigh("replace", ifindex=index, dst=host, lladdr=address, family=family, state="permanent")


def _add_vlan(route: Any, index: int, vlan: int) -> None:  # noqa: ANN401
    """Add the victim's VLAN interface; a kernel without 802.1Q drops the tagged packets instead."""
    from pyroute2.netlink.exceptions import NetlinkError

    name = f"{net.VICTIM_INTERFACE}.{vlan}"
    with contextlib.suppress(NetlinkError):
        route.link("add", ifname=name, link=index, kind="vlan", vlan_id=vlan)
        route.link("set", index=route.link_lookup(ifname=name)[0], state="up")


_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x03, 0x1B, 0x1D, 0x37
_SS_STATS = 1
_NAME_BYTES = 32
_QUEUED = b"tx_queue_0_xdp_xmit"  # frames sent by XDP that the peer's queue took,
_LOST = _QUEUED + b"_errors"  # and those that it did not


class Link:
    """An interface's driver and statistics by ethtool, in the namespace that it was opened in."""

    def __init__(self, interface: str) -> None:
        self._name = interface.encode()[:15]
        self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._names = self._statistics_names()
        self._stats = np.zeros(1 + len(self._names), np.uint64)
        self._stats[:1].view(np.uint32)[:] = (_GSTATS, len(self._names))
        self._request = struct.pack("16sQ", self._name, self._stats.ctypes.data)

    @property
    def driver(self) -> str:
        """Name of the driver; empty if unknown."""
        answer = self._ask(struct.pack("I", _GDRVINFO).ljust(196, b"\0"))
        return answer[4:36].partition(b"\0")[0].decode("ascii", "replace")

    def lost(self) -> int:
        """Return frames sent by XDP that the peer's full queue dropped, since the link was created."""
        return self._count(_LOST)

    def queued(self) -> int:
        """Return frames sent by XDP that the peer's queue took; it may not have received them yet."""
        return self._count(_QUEUED)

    def _count(self, name: bytes) -> int:
        if name not in self._names:
            return 0
        fcntl.ioctl(self._control, _SIOCETHTOOL, self._request)
        return int(self._stats[1 + self._names.index(name)])

    def close(self) -> None:
        """Close the control socket."""
        self._control.close()

    def _statistics_names(self) -> list[bytes]:
        count = struct.unpack_from(
            "I", self._ask(struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0)), 16
        )[0]
        head = struct.pack("III", _GSTRINGS, _SS_STATS, count)
        text = self._ask(head.ljust(len(head) + _NAME_BYTES * count, b"\0"))[len(head) :]
        rows = (text[start : start + _NAME_BYTES] for start in range(0, len(text), _NAME_BYTES))
        return [row.partition(b"\0")[0] for row in rows]

    def _ask(self, command: bytes) -> bytes:
        buffer = np.frombuffer(command, np.uint8).copy()
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._control, _SIOCETHTOOL, struct.pack("16sQ", self._name, buffer.ctypes.data))
        return buffer.tobytes()
