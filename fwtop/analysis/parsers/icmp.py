"""Packets that ICMP errors quote (RFC 792, 4443, 1812 4.3.2.3), and neighbour discovery."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import ICMP, ICMP6, UDP, Traffic, payload
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import I64, U8, Mask

_QUOTED = 48


_NEIGHBOURS = (130, 131, 132, 133, 134, 135, 136, 137, 143)
_TALKATIVE = (135, 136)  # solicitations and advertisements of neighbours: thousands live on large links


def is_discovery(icmp_type: int) -> bool:
    """Tell whether a type of ICMPv6 belongs to neighbour or multicast listener discovery."""
    return icmp_type in _NEIGHBOURS


def neighbours(traffic: Traffic) -> Mask:
    """Mark neighbour and multicast listener discovery (RFC 4861, 2710, 3810)."""
    packets = traffic.packets
    return np.asarray((packets.protocol == ICMP6) & among(packets.icmp_type, _NEIGHBOURS))


def neighbour_flood(traffic: Traffic, pps: float) -> Mask:
    """Mark neighbour discovery in numbers that no link has: router advertisements and the like (RFC 6104).

    `pps` is the least flood; tenfold for messages that each neighbour sends.
    """
    packets, flood = traffic.packets, np.zeros(len(traffic), np.bool_)
    common = neighbours(traffic)
    for kind in distinct_values(packets.icmp_type[common]).tolist():
        rows = common & (packets.icmp_type == kind)
        least = pps * (10 if kind in _TALKATIVE else 1)
        features = Features(traffic, np.flatnonzero(rows))
        if min(features.peak_pps, features.packets) >= least:
            flood |= rows
    return flood


def quoted_datagrams(traffic: Traffic) -> tuple[U8, I64]:
    """Return the beginnings of the UDP packets that ICMP errors quote, and how much of each was captured."""
    packets = traffic.packets
    rows = traffic.rows(traffic.icmp_errors & (packets.protocol == ICMP))[:2048]
    quoted, length = payload(packets, rows, _QUOTED)
    header = (quoted[:, 0] & 15).astype(np.int64) * 4
    good = (quoted[:, 0] >> 4 == 4) & (quoted[:, 9] == UDP) & (header == 20) & (length >= 28)
    return quoted[good], length[good]


def quoted_requests(datagrams: tuple[U8, I64], ports: list[int]) -> str:
    """Describe the spoofed requests among quoted datagrams; empty if there are none."""
    quoted, length = datagrams
    if not ports or not len(quoted):
        return ""
    dport = (quoted[:, 22].astype(np.int64) << 8) | quoted[:, 23]
    hits = np.flatnonzero(np.isin(dport, ports))
    if len(hits) == 0:
        return ""
    size = int(np.median((quoted[hits, 24].astype(np.int64) << 8) | quoted[hits, 25])) - 8
    sentence = (
        f"{len(hits):,} ICMP errors quote the spoofed requests to port {ports[0]} ({size} payload bytes"
    )
    longest = hits[np.argmax(length[hits])]
    content = quoted[longest, 28 : int(length[longest])].tobytes()
    return sentence + (f", beginning {payload_text(content, limit=20)!r})" if content else ")")
