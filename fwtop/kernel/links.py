"""The network interfaces of this namespace, its default routes, and notice when routes or addresses change.

By rtnetlink, which needs no privilege: /sys/class/net shows the namespace that mounted it, which may be
another one. Sources: rtnetlink(7), include/uapi/linux/if_link.h, net/ipv4/fib_trie.c (fib_route_seq_show),
net/ipv6/route.c (rt6_info_route), include/uapi/linux/ethtool.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.kernel import netlink
from fwtop.kernel.netlink import c_string, u32
from fwtop.kernel.procfs import read_text
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

LOOPBACK = "lo"
_RTM_GETLINK, _RTM_GETADDR, _RTM_GETSTATS = 18, 22, 94
_IFINFOMSG = struct.Struct("=BBHiII")  # family, padding, type, index, flags, change
_IFADDRMSG = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 3, 4, 5, 10
_IFLA_LINKINFO, _IFLA_STATS64, _IFLA_LINK_NETNSID, _IFLA_XDP = 18, 23, 37, 43
_INFO_KIND, _INFO_DATA = 1, 2  # in IFLA_LINKINFO
_BRIDGE_NETFILTER = {4: 36, 6: 37}  # IFLA_BR_NF_CALL_IPTABLES, _IP6TABLES
_XDP_ATTACHED, _XDP_PROGRAM_IDS = 2, (4, 5, 6, 7)  # in IFLA_XDP: the mode; an id, or one for each mode
_XDP_GENERIC, _XDP_NATIVE = 2, (1, 3, 4)  # XDP_ATTACHED_SKB; _DRV, _HW, _MULTI
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_GLOBAL = 0
_IFF_UP, _IFF_LOOPBACK = 1, 8
_WITH_ETHERNET_HEADER = frozenset({1, 772})  # ARPHRD_ETHER, ARPHRD_LOOPBACK
# struct rtnl_link_stats64: rx_packets tx_packets rx_bytes tx_bytes rx_errors tx_errors rx_dropped tx_dropped
# multicast collisions rx_length rx_over rx_crc rx_frame rx_fifo rx_missed …
_STATS = struct.Struct("=16Q")
_IF_STATS_MSG = struct.Struct("=BBHII")  # family, padding, padding, index, filter
_IFLA_STATS_LINK_64 = 1
_ANSWER_SECONDS = 0.5


class LinkStats(Struct, frozen=True):
    """What the driver and the core counted before tc, since the interface exists (rtnl_link_stats64)."""

    packets: int
    errors: int
    dropped: int
    missed: int
    fifo: int
    bytes: int = 0
    native_xdp: bool = False  # a program runs in the driver; `packets` includes those that it drops


class Link(Struct, frozen=True):
    """One interface; others are given by index, 0 for none."""

    index: int
    name: str
    ethernet: bool  # packets start with an Ethernet header
    up: bool
    loopback: bool
    lower: int  # the interface that a VLAN, macvlan or the like is stacked on
    master: int  # the bond or bridge that it belongs to
    stats: LinkStats
    kind: str = ""  # vlan, bond, bridge, veth, …; empty for hardware
    mtu: int = 1500  # bytes
    xdp_programs: tuple[int, ...] = ()  # ids
    generic_xdp: bool = False  # a program runs in the stack
    bridge_netfilter: frozenset[int] = frozenset()  # families that this bridge itself shows to netfilter


def list_links() -> list[Link]:
    """List all interfaces of this namespace; raises OSError."""
    request = _IFINFOMSG.pack(0, 0, 0, 0, 0, 0)
    links = [_link(body) for body in netlink.dump(socket.NETLINK_ROUTE, _RTM_GETLINK, request)]
    lower = {link.index: link.lower for link in links}
    # The two ends of a veth pair name each other: neither is stacked on the other.
    return [replace(link, lower=0) if lower.get(link.lower) == link.index else link for link in links]


class Received:
    """Packets and bytes that interfaces received, over a socket that stays open (RTM_GETSTATS).

    That takes a fortieth of the time of `list_links`, and doesn't grow with the number of other interfaces.
    """

    def __init__(self) -> None:
        self._channel: socket.socket | None = None

    def read(self, indexes: Iterable[int]) -> tuple[int, int]:
        """Return the sums since the interfaces exist; raises OSError, ENODEV if one is gone."""
        packets = size = 0
        try:
            self._channel = self._channel or netlink.open_socket(socket.NETLINK_ROUTE, _ANSWER_SECONDS)
            for index in indexes:
                request = _IF_STATS_MSG.pack(0, 0, 0, index, 1 << (_IFLA_STATS_LINK_64 - 1))
                body = netlink.ask(self._channel, _RTM_GETSTATS, request)
                found = dict(netlink.attributes(body, _IF_STATS_MSG.size))
                stats = _stats(found.get(_IFLA_STATS_LINK_64, b""), native_xdp=False)
                packets, size = packets + stats.packets, size + stats.bytes
        except OSError:
            self.close()  # a late answer must not be taken for the next one
            raise
        return packets, size

    def close(self) -> None:
        """Close the socket."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def readable_links() -> list[Link]:
    """List all interfaces, none if the kernel can't be asked."""
    try:
        return list_links()
    except OSError:
        return []


def _addresses() -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    """Yield family, prefix length, scope and attributes of each address."""
    for body in netlink.dump(socket.NETLINK_ROUTE, _RTM_GETADDR, _IFADDRMSG.pack(0, 0, 0, 0, 0)):
        family, length, _, scope, _ = _IFADDRMSG.unpack_from(body)
        yield family, length, scope, dict(netlink.attributes(body, _IFADDRMSG.size))


def list_addresses(*, every_scope: bool = False) -> list[str]:
    """List this namespace's own addresses, only global ones unless `every_scope`; raises OSError."""
    found: dict[str, None] = {}
    for family, _, scope, attributes in _addresses():
        # On a point-to-point link IFA_ADDRESS is the peer's
        value = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
        if value and (every_scope or scope == _SCOPE_GLOBAL) and family in (socket.AF_INET, socket.AF_INET6):
            found[socket.inet_ntop(family, value)] = None
    return list(found)


def broadcast_addresses() -> list[str]:
    """List the IPv4 broadcast addresses of the networks on this namespace's links; raises OSError."""
    found: dict[str, None] = {}
    for family, length, scope, attributes in _addresses():
        value = attributes.get(_IFA_LOCAL)
        if value and family == socket.AF_INET and scope == _SCOPE_GLOBAL and 0 < length < 31:
            last = int.from_bytes(value, "big") | (1 << (32 - length)) - 1
            found[socket.inet_ntop(family, last.to_bytes(4, "big"))] = None
    return list(found)


def _link(body: bytes) -> Link:
    _, _, arp_type, index, flags, _ = _IFINFOMSG.unpack_from(body)
    attributes = dict(netlink.attributes(body, _IFINFOMSG.size))
    xdp = dict(netlink.attributes(attributes.get(_IFLA_XDP, b"")))
    info = dict(netlink.attributes(attributes.get(_IFLA_LINKINFO, b"")))
    lower = u32(attributes.get(_IFLA_LINK))
    if _IFLA_LINK_NETNSID in attributes or lower == index:  # the peer of a veth pair, in another namespace
        lower = 0
    mode = xdp.get(_XDP_ATTACHED, b"\0")[0]
    return Link(
        index=index,
        name=c_string(attributes.get(_IFLA_IFNAME, b"")),
        ethernet=arp_type in _WITH_ETHERNET_HEADER,
        up=bool(flags & _IFF_UP),
        loopback=bool(flags & _IFF_LOOPBACK),
        lower=lower,
        master=u32(attributes.get(_IFLA_MASTER)),
        stats=_stats(attributes.get(_IFLA_STATS64, b""), native_xdp=mode in _XDP_NATIVE),
        kind=c_string(info.get(_INFO_KIND, b"")),
        mtu=u32(attributes.get(_IFLA_MTU)),
        xdp_programs=tuple(sorted({u32(xdp.get(key)) for key in _XDP_PROGRAM_IDS} - {0})),
        generic_xdp=mode == _XDP_GENERIC,
        bridge_netfilter=_bridge_netfilter(info),
    )


def _bridge_netfilter(info: dict[int, bytes]) -> frozenset[int]:
    if c_string(info.get(_INFO_KIND, b"")) != "bridge":
        return frozenset()
    data = dict(netlink.attributes(info.get(_INFO_DATA, b"")))
    return frozenset(family for family, key in _BRIDGE_NETFILTER.items() if any(data.get(key, b"")))


def _stats(value: bytes, *, native_xdp: bool) -> LinkStats:
    if len(value) < _STATS.size:
        return LinkStats(0, 0, 0, 0, 0)
    fields = _STATS.unpack_from(value)
    return LinkStats(
        packets=fields[0],
        errors=fields[4],
        dropped=fields[6],
        missed=fields[15],
        fifo=fields[14],
        bytes=fields[2],
        native_xdp=native_xdp,
    )


def receiving_links(links: Sequence[Link], names: Iterable[str] = ()) -> list[Link]:
    """Return those named that exist; else those with a default route; else all that are up but loopback."""
    by_name = {link.name: link for link in links}
    for candidates in (names, [route.interface for route in default_routes()]):
        chosen = [by_name[name] for name in dict.fromkeys(candidates) if name in by_name]
        if chosen:
            return chosen
    return [link for link in links if link.up and not link.loopback]


def choose_links(links: Sequence[Link], names: Sequence[str]) -> list[Link]:
    """Do the same for names from the command line.

    Raises FwtopError (code 2) that lists the interfaces if one is missing.
    """
    existing = {link.name for link in links}
    missing = [name for name in names if name not in existing]
    if missing:
        known = ", ".join(safe_text(link.name) for link in links) or "none"
        raise FwtopError(f"there is no interface {safe_text(missing[0])!r} here; there are: {known}", 2)
    chosen = receiving_links(links, names)
    if not chosen:
        raise FwtopError("no interface here is up: bring one up, or name one with -i (-i lo works too)", 2)
    return chosen


def watched_indexes(links: Sequence[Link], chosen: Sequence[Link]) -> list[int]:
    """Return the indexes of the chosen interfaces and of all that are stacked on them.

    The stack changes skb->dev when it passes a packet up to a VLAN, bond or bridge.
    """
    above: dict[int, list[int]] = {}
    for link in links:
        above.setdefault(link.lower, []).append(link.index)
        above.setdefault(link.index, []).append(link.master)
    above[0] = []  # 0 is no interface
    watched: set[int] = set()
    waiting = [link.index for link in chosen]
    while waiting:
        index = waiting.pop()
        if index not in watched:
            watched.add(index)
            waiting += above.get(index, [])
    watched.discard(0)
    return sorted(watched)


def lowest_links(links: Sequence[Link], chosen: Sequence[Link]) -> list[Link]:
    """Return the chosen interfaces without those stacked on another chosen one, where packets pass first."""
    return [
        link
        for link in chosen
        if not any(other is not link and link.index in watched_indexes(links, [other]) for other in chosen)
    ]


_SIOCETHTOOL = 0x8946
_GRINGPARAM, _GGRO = 0x10, 0x2B
# struct ethtool_ringparam: command; most of rx, rx mini, rx jumbo, tx; present sizes in the same order
_RINGPARAM = struct.Struct("=9I")
_VALUE = struct.Struct("=2I")  # struct ethtool_value: command, data
_NAME_BYTES = 16  # IFNAMSIZ


def receive_ring(interface: str) -> tuple[int, int] | None:
    """Return an interface's receive ring in packets and the most that it can have; None if it has none."""
    answer = ethtool(interface, _RINGPARAM.pack(_GRINGPARAM, *([0] * 8)))
    if answer is None:
        return None
    _, most, _, _, _, size, *_ = _RINGPARAM.unpack(answer)
    return (size, most) if size and most else None


def has_gro(interface: str) -> bool:
    """Return whether what an interface receives passes GRO, which verifies checksums; True if not known."""
    answer = ethtool(interface, _VALUE.pack(_GGRO, 0))
    return answer is None or _VALUE.unpack(answer)[1] != 0


def ethtool(interface: str, question: bytes) -> bytes | None:
    """Ask an interface's driver; the answer takes the place of the question. None if it doesn't tell."""
    buffer = ctypes.create_string_buffer(question, len(question))
    name = interface.encode()[: _NAME_BYTES - 1]
    request = struct.pack("16sQ16x", name, ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        try:
            fcntl.ioctl(channel, _SIOCETHTOOL, request)
        except OSError:
            return None
    return buffer.raw


_RTMGRP = 0x10 | 0x40 | 0x100 | 0x400  # IPv4 address and route, IPv6 address and route (linux/rtnetlink.h)
_NEWADDR, _DELADDR, _NEWROUTE, _DELROUTE = 20, 21, 24, 25
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_MAX_DATAGRAMS = 256  # in one call of `changed`
_RECEIVE_BYTES = 1 << 16
_RTF_UP, _RTF_REJECT = 0x1, 0x200


class DefaultRoute(Struct, frozen=True):
    """A route to everywhere; `gateway` is None where the destinations are on the link."""

    interface: str
    gateway: Prefix | None


def default_routes() -> list[DefaultRoute]:
    """Return the default routes of both families, IPv4 first; read from /proc/net."""
    return [*_ipv4_routes(read_text("/proc/net/route")), *_ipv6_routes(read_text("/proc/net/ipv6_route"))]


def _ipv4_routes(text: str) -> Iterator[DefaultRoute]:
    for line in text.splitlines()[1:]:
        words = line.split()  # interface, destination, gateway, flags, …, mask
        if len(words) > 7 and words[1] == words[7] == "0" * 8 and int(words[3], 16) & _RTF_UP:
            value = int.from_bytes(bytes.fromhex(words[2])[::-1], "big")
            yield DefaultRoute(words[0], Prefix(4, value, 32) if value else None)


def _ipv6_routes(text: str) -> Iterator[DefaultRoute]:
    for line in text.splitlines():
        words = line.split()  # destination, its length, source, its length, gateway, …, flags, interface
        # A route to everywhere on lo rejects what has no other route.
        if len(words) > 9 and words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo":
            value = int(words[4], 16)
            if not int(words[8], 16) & _RTF_REJECT:
                yield DefaultRoute(words[9], Prefix(6, value, 128) if value else None)


class RouteMonitor:
    """A socket that becomes readable when routes or addresses of this namespace change. Raises OSError."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)
        self._sock.bind((0, _RTMGRP))

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._sock.fileno()

    def changed(self) -> bool:
        """Drain the socket and return whether an address or a default route changed.

        Lost notifications (ENOBUFS) count as a change.
        """
        found = False
        for _ in range(_MAX_DATAGRAMS):
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return found
            except OSError:  # ENOBUFS
                found = True
                continue
            found = found or any(_is_relevant(kind, body) for kind, body in netlink.messages(data))
        return found

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def _is_relevant(kind: int, body: bytes) -> bool:
    if kind in (_NEWADDR, _DELADDR):
        return True
    is_route = kind in (_NEWROUTE, _DELROUTE) and len(body) >= _ROUTE.size
    return is_route and _ROUTE.unpack_from(body)[1] == 0  # rtm_dst_len
