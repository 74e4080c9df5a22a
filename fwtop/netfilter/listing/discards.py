"""Routes that discard packets: blackhole, unreachable, prohibit. The kernel doesn't count them.

Source: rtnetlink(7), include/uapi/linux/rtnetlink.h.
"""

from __future__ import annotations

import socket
import struct
import time

from fwtop.kernel import netlink
from fwtop.model.ruleset import ROUTE, ListedRule

_GETROUTE = 26
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_DESTINATION, _TABLE, _PRIORITY = 1, 15, 6  # RTA_*
_KINDS = {6: "blackhole", 7: "unreachable", 8: "prohibit"}  # RTN_*
_FAMILIES = {socket.AF_INET: "ip", socket.AF_INET6: "ip6"}
_MAIN = 254
_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}


def discarding_routes(end: float, most: int) -> tuple[list[ListedRule], list[str], int]:
    """Return at most so many routes read until `end`, what is missing in words, and how many were seen.

    The kernel sorts them out: a router may have a million others. Raises OSError.
    """
    found: list[ListedRule] = []
    total = 0
    for family, name in _FAMILIES.items():
        for kind, word in _KINDS.items():
            request = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, kind, 0)
            for body in netlink.dump(socket.NETLINK_ROUTE, _GETROUTE, request, filtered=True):
                if body[7] != kind:  # before Linux 4.20 the kernel lists all
                    continue
                total += 1
                if len(found) < most:
                    found.append(_listed(body, family, name, word))
                elif time.monotonic() > end:
                    return found, [f"routes: only the first {len(found):,} were read in time"], total
    return found, [], total


def _listed(body: bytes, family: int, name: str, word: str) -> ListedRule:
    attributes = dict(netlink.attributes(body, _ROUTE.size))
    raw = attributes.get(_DESTINATION, bytes(_BYTES[socket.AddressFamily(family)]))
    destination = f"{socket.inet_ntop(family, raw)}/{body[1]}" if body[1] else "default"
    table = _number(attributes.get(_TABLE)) or body[4]
    metric = _number(attributes.get(_PRIORITY))
    place = "main" if table == _MAIN else f"table {table}"
    text = f"{word} {destination}" + (f" metric {metric}" if metric else "")
    return ListedRule(f"{ROUTE} {name} {table} {text}", ROUTE, name, place, text, False)


def _number(value: bytes | None) -> int:
    return int(struct.unpack_from("=I", value)[0]) if value else 0
