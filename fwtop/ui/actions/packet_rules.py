"""The rule that a key makes of a packet: block its sender, or drop what is like it."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.window.traffic import payload
from fwtop.model.rule import Kind, Match, PayloadMatch, Range
from fwtop.model.traffic.packets import Fragment
from fwtop.model.traffic.protocols import ICMP, ICMPV6, TCP, WITH_PORTS
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.state.packets import PacketRow

_CLASSIC = 63  # the six flags that every mechanism can match
_MOST_BYTES = 16  # of a payload's beginning
_SEARCHED = 64  # bytes of the payload in which others are compared
_FEW = 5  # packets to compare with
_MOST = 0.9  # of them have a byte in common
_LEAST, _MOST_RUN = 4, 32  # bytes of a run


def match_of_packet(action: str, item: PacketRow) -> tuple[Kind, Match]:
    """Return the rule's kind and match; raises ValueError with a line to show.

    A packet with a payload is matched by what its payload has in common with others to that port, one without
    by its header fields.
    """
    if item.source is None:
        raise ValueError("this is not an IP packet: no rule of fwtop's matches it")
    if action in ("block", "limit"):
        return (Kind.IPSET if action == "block" else Kind.HASHLIMIT), Match(sources=(item.source,))
    if action not in ("like", "string", "xdp"):
        raise ValueError(
            KEY_MAP.words(
                "no such rule fits a packet: {like} drops what is like it, {block} blocks its sender"
            )
        )
    match = _fields(item)
    if item.field("fragment") == Fragment.LATER:
        return Kind.XDP, match
    if item.payload:
        kind = Kind.XDP if action == "xdp" else Kind.STRING
        return kind, replace(match, payload=(_common_bytes(item),))
    if action == "string":
        words = "this packet has no payload: {like} drops packets with its header fields"
        raise ValueError(KEY_MAP.words(words))
    return Kind.XDP, _without_payload(match, item)


def _common_bytes(item: PacketRow) -> PayloadMatch:
    """Return the longest run of bytes that most payloads of like packets have at the same place.

    Transaction ids and other bytes that change with every packet stay out of it. Without others to compare
    with, or without a run worth the name, these are the packet's own first bytes.
    """
    packets, data = item.shown.packets, item.payload[:_SEARCHED]
    like = (packets.protocol == item.field("protocol")) & (packets.dport == item.field("dport"))
    like &= (packets.family == item.field("family")) & (packets.fragment == item.field("fragment"))
    rows = np.flatnonzero(
        like & (packets.payload_length > 0) & (packets.tcp_flags == item.field("tcp_flags"))
    )
    start, best = 0, 0
    if len(rows) >= _FEW:
        heads, _ = payload(packets, rows, len(data))
        common = (heads == np.frombuffer(data, np.uint8)).mean(axis=0) >= _MOST
        edges = np.flatnonzero(np.diff(np.concatenate(([False], common, [False]))))
        runs = edges.reshape(-1, 2)
        if len(runs):
            start, end = runs[np.argmax(runs[:, 1] - runs[:, 0])].tolist()
            best = end - start
    if best < _LEAST:
        return PayloadMatch(data[:_MOST_BYTES], 0)
    return PayloadMatch(data[start : start + min(best, _MOST_RUN)], start)


def _fields(item: PacketRow) -> Match:
    """Match protocol, destination port, flags or type."""
    protocol = item.field("protocol")
    match = Match(family=item.field("family"), protocol=protocol)
    if item.field("fragment") == Fragment.LATER:
        return replace(match, fragment=True)
    if protocol in WITH_PORTS:
        match = replace(match, dport=item.field("dport"))
    if protocol in (ICMP, ICMPV6):
        match = replace(match, icmp_type=item.field("icmp_type"))
    if protocol == TCP and item.field("tcp_header"):
        match = replace(match, tcp_flags=(_CLASSIC, item.field("tcp_flags") & _CLASSIC))
    return match


def _without_payload(match: Match, item: PacketRow) -> Match:
    """Narrow a match by length and, for TCP, by window and options' length."""
    length = item.field("ip_length")
    match = replace(match, ip_length=Range(length, length))
    header, window = item.field("tcp_header"), item.field("tcp_window")
    if item.field("protocol") != TCP or not header:
        return match
    return replace(match, tcp_window=Range(window, window), tcp_header=Range(header, header))
