"""What ICMP errors quote: the packets that were sent in this host's name (RFC 792, 4443, 1812 4.3.2.3)."""

from __future__ import annotations

import numpy as np

from fwtop.advise.traffic import ICMP, ICMP6, UDP, Traffic, payload
from fwtop.model.packets import Mask
from fwtop.model.text import payload_text

ERRORS = (3, 4, 5, 11, 12)
_QUOTED = 48


def errors(traffic: Traffic) -> Mask:
    """Tell ICMP errors (IPv4 types 3, 4, 5, 11, 12; ICMPv6 below 128)."""
    packets = traffic.packets
    four = (packets.protocol == ICMP) & np.isin(packets.icmp_type, ERRORS)
    six = (packets.protocol == 58) & (packets.icmp_type < 128)
    return np.asarray((four | six) & ~traffic.later & (packets.family != 0))


_NEIGHBOURS = (130, 131, 132, 133, 134, 135, 136, 137, 143)


def neighbours(traffic: Traffic) -> Mask:
    """Tell neighbour and group discovery, which every link has (RFC 4861, 2710, 3810)."""
    packets = traffic.packets
    return np.asarray((packets.protocol == ICMP6) & np.isin(packets.icmp_type, _NEIGHBOURS))


def quoted_requests(traffic: Traffic, ports: list[int]) -> str:
    """Say what the forged requests look like where an ICMP error quotes them; "" where none does."""
    if not ports:
        return ""
    packets = traffic.packets
    rows = traffic.rows(errors(traffic) & (packets.protocol == ICMP))[:2048]
    if len(rows) == 0:
        return ""
    quoted, length = payload(packets, rows, _QUOTED)
    header = (quoted[:, 0] & 15).astype(np.int64) * 4
    good = (quoted[:, 0] >> 4 == 4) & (quoted[:, 9] == UDP) & (header == 20) & (length >= 28)
    dport = (quoted[:, 22].astype(np.int64) << 8) | quoted[:, 23]
    hits = np.flatnonzero(good & np.isin(dport, ports))
    if len(hits) == 0:
        return ""
    size = int(np.median((quoted[hits, 24].astype(np.int64) << 8) | quoted[hits, 25])) - 8
    sentence = f"{len(hits):,} ICMP errors quote the forged requests to port {ports[0]} ({size} payload bytes"
    longest = hits[np.argmax(length[hits])]
    content = quoted[longest, 28 : int(length[longest])].tobytes()
    return sentence + (f", beginning {payload_text(content, limit=20)!r})" if content else ")")
