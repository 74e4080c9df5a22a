"""The network interfaces of this namespace, by rtnetlink and without any privilege.

/sys/class/net shows the namespace that mounted it, which is not always ours; netlink always is.
Source: rtnetlink(7), include/uapi/linux/if_link.h.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from fwtop.collect import netlink
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_RTM_GETLINK, _RTM_GETADDR = 18, 22
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_STATS64, _IFLA_LINK_NETNSID = 3, 5, 10, 23, 37
_IFLA_LINKINFO, _IFLA_INFO_KIND = 18, 1
_IFLA_XDP, _IFLA_XDP_ATTACHED = 43, 2
_XDP_NATIVE = (1, 3, 4)  # XDP_ATTACHED_DRV, _HW, _MULTI: 2 is generic XDP, in the stack
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_GLOBAL = 0
_IFF_UP, _IFF_LOOPBACK = 1, 8
_WITH_ETHERNET_HEADER = frozenset({1, 772})  # ARPHRD_ETHER, ARPHRD_LOOPBACK
_DEFAULT_V6 = "0" * 32


@dataclass(frozen=True, slots=True)
class LinkStats:
    """What the driver and the core counted before tc, since the interface exists (rtnl_link_stats64)."""

    packets: int
    errors: int
    dropped: int
    missed: int
    fifo: int
    bytes: int = 0
    native_xdp: bool = False  # a program runs in the driver: what it drops is among `packets`


@dataclass(frozen=True, slots=True)
class Link:
    """One interface. `lower` are the interfaces that it stands on (VLAN, bond, bridge), by number."""

    index: int
    name: str
    ethernet: bool  # packets start with an Ethernet header
    up: bool
    loopback: bool
    link: int  # a VLAN's lower interface, else 0
    master: int  # the bond or bridge that it belongs to, else 0
    stats: LinkStats
    kind: str = ""  # vlan, bond, bridge, veth, …; empty for hardware


def list_links() -> list[Link]:
    """List all interfaces of this namespace; raises OSError."""
    # struct ifinfomsg: family, padding, type, index, flags, change
    request = struct.pack("<BBHiII", 0, 0, 0, 0, 0, 0)
    links = [_link(body) for body in netlink.dump(socket.NETLINK_ROUTE, _RTM_GETLINK, request)]
    lower = {link.index: link.link for link in links}
    # The two ends of a veth pair name each other: neither stands on the other
    return [replace(link, link=0) if lower.get(link.link) == link.index else link for link in links]


def list_addresses() -> list[str]:
    """List this namespace's own addresses, loopback and link-local ones left out; raises OSError."""
    found: dict[str, None] = {}
    # struct ifaddrmsg: family, prefix length, flags, scope, index
    for body in netlink.dump(socket.NETLINK_ROUTE, _RTM_GETADDR, struct.pack("<BBBBI", 0, 0, 0, 0, 0)):
        family, _, _, scope, _ = struct.unpack_from("<BBBBI", body)
        attributes = dict(netlink.attributes(body, 8))
        # On a point-to-point link IFA_ADDRESS is the other end's
        value = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
        if value and scope == _SCOPE_GLOBAL and family in (socket.AF_INET, socket.AF_INET6):
            found[socket.inet_ntop(family, value)] = None
    return list(found)


def _link(body: bytes) -> Link:
    _, _, arp_type, index, flags, _ = struct.unpack_from("<BBHiII", body)
    attributes = dict(netlink.attributes(body, 16))
    lower = _number(attributes.get(_IFLA_LINK))
    if _IFLA_LINK_NETNSID in attributes or lower == index:  # the peer of a veth pair, in another namespace
        lower = 0
    return Link(
        index=index,
        name=_text(attributes.get(_IFLA_IFNAME, b"")),
        ethernet=arp_type in _WITH_ETHERNET_HEADER,
        up=bool(flags & _IFF_UP),
        loopback=bool(flags & _IFF_LOOPBACK),
        link=lower,
        master=_number(attributes.get(_IFLA_MASTER)),
        stats=_stats(attributes.get(_IFLA_STATS64, b""), attributes.get(_IFLA_XDP, b"")),
        kind=_text(dict(netlink.attributes(attributes.get(_IFLA_LINKINFO, b""))).get(_IFLA_INFO_KIND, b"")),
    )


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "replace")


def _number(value: bytes | None) -> int:
    return int(struct.unpack_from("<I", value)[0]) if value else 0


def _stats(value: bytes, xdp: bytes) -> LinkStats:
    if len(value) < 21 * 8:
        return LinkStats(0, 0, 0, 0, 0)
    # rx_packets tx_packets rx_bytes tx_bytes rx_errors tx_errors rx_dropped tx_dropped multicast collisions
    # rx_length rx_over rx_crc rx_frame rx_fifo rx_missed …
    fields = struct.unpack_from("<21Q", value)
    return LinkStats(
        packets=fields[0],
        errors=fields[4],
        dropped=fields[6],
        missed=fields[15],
        fifo=fields[14],
        bytes=fields[2],
        native_xdp=dict(netlink.attributes(xdp)).get(_IFLA_XDP_ATTACHED, b"\0")[0] in _XDP_NATIVE,
    )


def choose_links(links: list[Link], names: list[str]) -> list[Link]:
    """Return the named interfaces, or those with a default route, or all that are up.

    Raises FwtopError (code 2) that names the interfaces there are.
    """
    if not names:
        names = _default_route_names()
    by_name = {link.name: link for link in links}
    missing = [name for name in names if name not in by_name]
    if missing:
        there = ", ".join(safe_text(link.name) for link in links) or "none"
        raise FwtopError(f"there is no interface {safe_text(missing[0])!r} here; there are: {there}", 2)
    chosen = [by_name[name] for name in dict.fromkeys(names)]
    if not chosen:
        chosen = [link for link in links if link.up and not link.loopback]
    if not chosen:
        raise FwtopError("no interface here is up: bring one up, or name one with -i (-i lo works too)", 2)
    return chosen


def _default_route_names() -> list[str]:
    names: list[str] = []
    for line in _lines("/proc/net/route")[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000" and int(words[3], 16) & 1:
            names.append(words[0])
    for line in _lines("/proc/net/ipv6_route"):
        words = line.split()
        # A reject route (flag 0x200) to everywhere stands on lo.
        if len(words) > 9 and words[0] == _DEFAULT_V6 and words[1] == "00" and not int(words[8], 16) & 0x200:
            names.append(words[9])
    return [name for name in names if name != "lo"]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def watched_indexes(links: list[Link], chosen: list[Link]) -> list[int]:
    """Return the chosen interfaces and all that stand on them.

    The stack renames a packet's way in when it passes a VLAN, bond or bridge on to the upper interface.
    """
    above: dict[int, list[int]] = {}
    for link in links:
        above.setdefault(link.link, []).append(link.index)
        above.setdefault(link.index, []).append(link.master)
    above[0] = []  # 0: there is none
    watched: set[int] = set()
    waiting = [link.index for link in chosen]
    while waiting:
        index = waiting.pop()
        if index not in watched:
            watched.add(index)
            waiting += above.get(index, [])
    watched.discard(0)
    return sorted(watched)


def lowest_links(links: list[Link], chosen: list[Link]) -> list[Link]:
    """Leave out of the chosen those that stand on another chosen one: their packets pass there first."""
    return [
        link
        for link in chosen
        if not any(other is not link and link.index in watched_indexes(links, [other]) for other in chosen)
    ]
