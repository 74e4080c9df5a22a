"""Default routes of this namespace, and notifications when they or the addresses change.

Sources: rtnetlink(7), net/ipv4/fib_trie.c (fib_route_seq_show), net/ipv6/route.c (rt6_info_route).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from msgspec import Struct

from fwtop.kernel import netlink
from fwtop.kernel.procfs import read_text
from fwtop.model.addresses.address import Prefix

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
