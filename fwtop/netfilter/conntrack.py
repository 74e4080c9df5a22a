"""The flows that connection tracking knows, through nfnetlink: the peers of a UDP service.

Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import ipaddress
import struct

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETFILTER_HEADER_BYTES, NETLINK_NETFILTER, attributes
from fwtop.model.traffic.protocols import UDP

_GET = 1 << 8 | 1  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET
_ORIGINAL, _REPLY, _STATUS = 1, 2, 3  # CTA_*
_ADDRESSES, _PROTOCOL = 1, 2  # of a tuple
_SEEN_REPLY = 1 << 1  # IPS_SEEN_REPLY
_FAMILIES = {4: 2, 6: 10}  # AF_INET, AF_INET6


def udp_peers(family: int, port: int, most: int) -> list[tuple[str, int]]:
    """Return address and port of those who talk with a UDP service, whoever began; at most `most`.

    Empty where connection tracking can't be read.
    """
    found: list[tuple[str, int]] = []
    wanted = struct.pack(">H", port)
    try:
        for body in netlink.dump(NETLINK_NETFILTER, _GET, netlink.netfilter_header(_FAMILIES[family])):
            if wanted in body and (peer := _peer(body, wanted)) is not None:
                found.append(peer)
                if len(found) == most:
                    break
    except OSError:
        return []
    return found


def _peer(body: bytes, port: bytes) -> tuple[str, int] | None:
    """Return the far end of an answered UDP flow that has this port at our end."""
    flow = dict(attributes(body, NETFILTER_HEADER_BYTES))
    if not int.from_bytes(flow.get(_STATUS, b""), "big") & _SEEN_REPLY:
        return None
    # What the far end sends: in the original direction if it began, else in the answers.
    for direction in (_ORIGINAL, _REPLY):
        parts = dict(attributes(flow.get(direction, b"")))
        protocol = dict(attributes(parts.get(_PROTOCOL, b"")))
        if protocol.get(1) != bytes([UDP]) or protocol.get(3) != port:
            continue
        addresses = dict(attributes(parts.get(_ADDRESSES, b"")))
        source = addresses.get(1) or addresses.get(3)
        if source is not None:
            return str(ipaddress.ip_address(source)), int.from_bytes(protocol.get(2, b""), "big")
    return None
