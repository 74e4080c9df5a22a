"""Packet headers to columns, as whole arrays: what turns records of any hook into a PacketBatch.

Two ways to the same answer: plain IPv4 in Ethernet is read at fixed places; everything else (VLAN,
options, IPv6, fragments, short or lying packets) goes through `parse_any`, which gathers a small window
a header and row. Loops are over header depth only. Sources: IEEE 802.1Q and 802.1ad, RFC 791, 8200 with
6946 (atomic fragments), 4302, 9293, 768, 792, 4443.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.parse_any import parse_any, with_link_header
from fwtop.model.packets import F64, FLAG_TUNNEL, I64, U8, U16, U32, Mask, PacketBatch

_ETHERNET_IPV4_PLAIN = 0x080045  # ethertype, then version 4 with a header of 20 bytes
_AT_ONCE = 4096  # rows of the general parser: its many small steps then stay in the processor's cache
_HEAD = 54  # Ethernet, IPv4 and TCP without options
TUNNELS = (4, 41, 47, 97, 115, 137)  # IPIP, 6in4, GRE, EtherIP, L2TPv3, MPLS in IP
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
    """Parse n packets, whatever their bytes are; never raises on content.

    `data` is (n, width) and zero-padded behind `captured`; `link` is 1 where it starts with an Ethernet
    header and 0 where it starts with the IP header (such rows get a blank Ethernet header, so that
    `data` of the batch always has one). `length` is the size on the wire in bytes. Where `whole`, it is
    that of exactly this packet, so that an IP length beyond it is a contradiction; leave it False where
    one record may stand for several packets joined by GRO. The other arguments become columns.
    """
    n = len(captured)
    links = np.broadcast_to(np.asarray(link, np.uint8), n)
    captured = np.minimum(captured, data.shape[1]).astype(np.uint16)
    length = np.asarray(length, np.uint32)
    added = np.where(links == 1, 0, 14).astype(np.uint16)
    if added.any():
        data, captured = with_link_header(data, captured, links)
    # A frame is at least what was captured of it, whatever its record says
    frame = np.maximum(length.astype(np.int64) + added, captured)
    wire = np.where(np.broadcast_to(whole, n), frame, 1 << 32)
    columns = _parse_plain(data, captured, wire)
    slow = np.flatnonzero(~columns.pop("plain"))
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


def _parse_plain(data: U8, captured: U16, wire: I64) -> dict[str, NDArray[Any]]:
    """Read every row as Ethernet, IPv4 without options or fragments, TCP, UDP or ICMP.

    The column `plain` tells the rows for which this was right; the other rows hold nonsense.
    """
    head = np.zeros((len(data), 64), np.uint8)
    width = min(_HEAD, data.shape[1])
    head[:, :width] = data[:, :width]
    ip_length = _be16(head, 16)
    total = ip_length.astype(np.int64)
    protocol = head[:, 23].copy()
    tcp, udp, icmp = protocol == 6, protocol == 17, protocol == 1
    udp_length = _be16(head, 38).astype(np.int64)
    header = np.where(tcp, (head[:, 46] >> 4).astype(np.int64) << 2, 8)
    fits = (header + 20 <= total) & (captured >= header + 34) & (total + 14 <= wire)
    udp_fits = (udp_length >= 8) & (udp_length + 20 <= total)
    plain = (_be32(head, 12) >> 8 == _ETHERNET_IPV4_PLAIN) & (_be16(head, 20) & 0x3FFF == 0)
    plain &= fits & ((tcp & (header >= 20)) | (udp & udp_fits) | icmp)
    payload = np.where(udp, udp_length - 8, total - 20 - header)
    zero64 = np.zeros(len(data), np.uint64)
    return {
        "plain": plain,
        "family": np.full(len(data), 4, np.uint8),
        "ethertype": np.full(len(data), 0x0800, np.uint16),
        "vlan": np.zeros(len(data), np.uint16),
        "src_hi": zero64,
        "src_lo": _be32(head, 26).astype(np.uint64),
        "dst_hi": zero64.copy(),
        "dst_lo": _be32(head, 30).astype(np.uint64),
        "protocol": protocol,
        "ttl": head[:, 22].copy(),
        "ip_id": _be16(head, 18).astype(np.uint32),
        "ip_length": ip_length,
        "fragment": np.zeros(len(data), np.uint8),
        "sport": np.where(icmp, np.uint16(0), _be16(head, 34)),
        "dport": np.where(icmp, np.uint16(0), _be16(head, 36)),
        "tcp_flags": np.where(tcp, head[:, 47], np.uint8(0)),
        "tcp_window": np.where(tcp, _be16(head, 48), np.uint16(0)),
        "tcp_seq": np.where(tcp, _be32(head, 38), np.uint32(0)),
        "icmp_type": np.where(icmp, head[:, 34], np.uint8(0)),
        "icmp_code": np.where(icmp, head[:, 35], np.uint8(0)),
        "payload_offset": (header + 34).astype(np.uint16),
        "payload_length": payload.astype(np.uint16),
        "flags": np.zeros(len(data), np.uint8),
    }


def _be16(head: U8, offset: int) -> U16:
    return head[:, offset : offset + 2].view(">u2")[:, 0].astype(np.uint16)


def _be32(head: U8, offset: int) -> U32:
    return head[:, offset : offset + 4].view(">u4")[:, 0].astype(np.uint32)
