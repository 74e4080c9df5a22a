"""Parse samples of any hook into a PacketBatch, vectorised.

Plain IPv4 and IPv6 in Ethernet are read at fixed offsets; everything else (VLAN, PPPoE, MPLS, options,
extension headers, fragments, truncated or malformed packets) goes through the slower `parse_any`. Loops are
over header depth only. Sources: IEEE 802.1Q and
802.1ad, RFC 791, 8200 with 6946 (atomic fragments), 4302, 9293, 768, 792, 4443.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.model.traffic.packets import F64, FLAG_TUNNEL, I64, U8, U16, U32, Mask, PacketBatch
from fwtop.parse.general import be16, be32, be64, parse_any, with_link_header

_ETHERNET_IPV4_PLAIN = 0x080045  # ethertype, then version 4 with a header of 20 bytes
_AT_ONCE = 4096  # rows per call of the general parser: its arrays then stay in the CPU's cache
_HEAD_IPV6 = 74  # Ethernet, IPv6 and TCP without options
TUNNELS = (4, 41, 47, 97, 115, 137)  # IPIP, 6in4, GRE, EtherIP, L2TPv3, MPLS in IP
Columns = dict[str, NDArray[Any]]
_IS_TUNNEL = np.isin(np.arange(256), TUNNELS)


def parse_packets(
    data: U8,
    captured: U16,
    *,
    link: U8 | int,
    length: U32,
    time_ns: I64,
    weight: F64,
    hook: U8 | int,
    reason: U16 | int = 0,
    rule: U32 | int = 0,
    ifindex: U32 | int = 0,
    whole: Mask | bool = False,
) -> PacketBatch:
    """Parse n packets; never raises, whatever their contents.

    `data` is (n, width), zero-padded behind `captured`. `link` is 1 for rows that start with an Ethernet
    header, 0 for those that start with the IP header: these get a blank Ethernet header. `length` is the
    size on the wire in bytes; with `whole`, an IP length that exceeds it is malformed. Leave that False where
    GRO may have merged several packets into one. The other arguments become columns.
    """
    n = len(captured)
    links = np.broadcast_to(np.asarray(link, np.uint8), n)
    captured = np.minimum(captured, data.shape[1]).astype(np.uint16)
    length = np.asarray(length, np.uint32)
    added = np.where(links == 1, 0, 14).astype(np.uint16)
    if added.any():
        data, captured = with_link_header(data, captured, links)
    # A frame is no shorter than what was captured of it, whatever its record says
    frame = np.maximum(length.astype(np.int64) + added, captured)
    wire = np.where(np.broadcast_to(whole, n), frame, 1 << 32)
    columns = _parse_plain_ipv4(data, captured, wire)
    six = np.flatnonzero(~columns["plain"] & _is_ipv6(data))
    if len(six):
        found = _parse_plain_ipv6(data[six, :_HEAD_IPV6], captured[six], wire[six])
        if len(six) == n:
            columns = found
        else:
            for name, values in found.items():
                columns[name][six] = values
    plain = columns.pop("plain")
    slow = np.flatnonzero(~plain)
    for start in range(0, len(slow), _AT_ONCE):
        part = slow[start : start + _AT_ONCE]
        for name, values in parse_any(data, captured, frame, wire, part).items():
            columns[name][part] = values
    columns["flags"] |= np.where(_IS_TUNNEL[columns["protocol"]], np.uint8(FLAG_TUNNEL), np.uint8(0))
    return PacketBatch(
        time_ns=np.asarray(time_ns, np.int64),
        weight=np.asarray(weight, np.float64),
        length=length,
        ifindex=_column(ifindex, n, np.uint32),
        hook=_column(hook, n, np.uint8),
        reason=_column(reason, n, np.uint16),
        rule=_column(rule, n, np.uint32),
        captured=captured,
        data=data,
        **columns,
    )


def _column(value: NDArray[Any] | int, n: int, dtype: type[np.generic]) -> NDArray[Any]:
    if isinstance(value, int):
        return np.full(n, value, dtype)
    return np.asarray(value, dtype)


def _parse_plain_ipv4(data: U8, captured: U16, wire: I64) -> Columns:
    """Parse every row as Ethernet, unfragmented IPv4 without options, TCP, UDP or ICMP.

    Valid only where the column `plain` is set.
    """
    head = _head(data, 34)
    ip_length = be16(head, 16)
    end = 14 + ip_length.astype(np.int64)
    protocol = head[:, 23].copy()
    plain = (be32(head, 12) >> 8 == _ETHERNET_IPV4_PLAIN) & (be16(head, 20) & 0x3FFF == 0)
    zero = np.zeros(len(data), np.uint64)
    return {
        "family": np.full(len(data), 4, np.uint8),
        "ethertype": np.full(len(data), 0x0800, np.uint16),
        "vlan": np.zeros(len(data), np.uint16),
        "src_hi": zero,
        "src_lo": be32(head, 26).astype(np.uint64),
        "dst_hi": zero.copy(),
        "dst_lo": be32(head, 30).astype(np.uint64),
        "protocol": protocol,
        "ttl": head[:, 22].copy(),
        "ip_id": be16(head, 18).astype(np.uint32),
        "ip_length": ip_length,
        "fragment": np.zeros(len(data), np.uint8),
        "flags": np.zeros(len(data), np.uint8),
        **_plain_transport(
            head, 34, end, captured=captured, wire=wire, protocol=protocol, plain=plain, icmp=1
        ),
    }


def _parse_plain_ipv6(data: U8, captured: U16, wire: I64) -> Columns:
    """Do the same for IPv6 without extension headers, TCP, UDP or ICMPv6."""
    head = _head(data, 54)
    size = be16(head, 18).astype(np.int64)
    end = 54 + size
    protocol = head[:, 20].copy()
    plain = (be16(head, 12) == 0x86DD) & (head[:, 14] >> 4 == 6) & (size > 0)
    return {
        "family": np.full(len(data), 6, np.uint8),
        "ethertype": np.full(len(data), 0x86DD, np.uint16),
        "vlan": np.zeros(len(data), np.uint16),
        "src_hi": be64(head, 22),
        "src_lo": be64(head, 30),
        "dst_hi": be64(head, 38),
        "dst_lo": be64(head, 46),
        "protocol": protocol,
        "ttl": head[:, 21].copy(),
        "ip_id": np.zeros(len(data), np.uint32),
        "ip_length": np.minimum(size + 40, 0xFFFF).astype(np.uint16),
        "fragment": np.zeros(len(data), np.uint8),
        "flags": np.zeros(len(data), np.uint8),
        **_plain_transport(
            head, 54, end, captured=captured, wire=wire, protocol=protocol, plain=plain, icmp=58
        ),
    }


def _plain_transport(
    head: U8, at: int, end: I64, *, captured: U16, wire: I64, protocol: U8, plain: Mask, icmp: int
) -> Columns:
    """Parse the transport header at `at` of packets that end at `end`, and refine `plain`."""
    is_tcp, is_udp, is_icmp = protocol == 6, protocol == 17, protocol == icmp
    udp_end = at + be16(head, at + 4).astype(np.int64)
    start = at + np.where(is_tcp, (head[:, at + 12] >> 4).astype(np.int64) << 2, 8)
    fits = (start <= end) & (start <= captured) & (end <= wire)
    right = (is_tcp & (start >= at + 20)) | (is_udp & (udp_end >= at + 8) & (udp_end <= end)) | is_icmp
    return {
        "plain": plain & fits & right,
        "sport": np.where(is_icmp, np.uint16(0), be16(head, at)),
        "dport": np.where(is_icmp, np.uint16(0), be16(head, at + 2)),
        "tcp_flags": np.where(is_tcp, head[:, at + 13], np.uint8(0)),
        "tcp_window": np.where(is_tcp, be16(head, at + 14), np.uint16(0)),
        "tcp_seq": np.where(is_tcp, be32(head, at + 4), np.uint32(0)),
        "tcp_header": np.where(is_tcp, head[:, at + 12] >> 4 << 2, np.uint8(0)),
        "icmp_type": np.where(is_icmp, head[:, at], np.uint8(0)),
        "icmp_code": np.where(is_icmp, head[:, at + 1], np.uint8(0)),
        "payload_offset": start.astype(np.uint16),
        "payload_length": (np.where(is_udp, udp_end, end) - start).astype(np.uint16),
    }


def _head(data: U8, transport: int) -> U8:
    """Copy the first bytes of each row, up to the end of a TCP header without options."""
    head = np.zeros((len(data), (transport + 20 + 7) & ~7), np.uint8)
    width = min(transport + 20, data.shape[1])
    head[:, :width] = data[:, :width]
    return head


def _is_ipv6(data: U8) -> Mask:
    """Mark the rows with the ethertype of IPv6 and no VLAN tag."""
    if data.shape[1] < 14:
        return np.zeros(len(data), np.bool_)
    return np.asarray((data[:, 12] == 0x86) & (data[:, 13] == 0xDD))
