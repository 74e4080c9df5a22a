"""Frames built by hand, so that tests depend on no packet library."""

import ipaddress
import struct

import numpy as np

from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.parse.packets import parse_packets

MACS = b"\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02"


def ethernet(payload: bytes, ethertype: int, vlans: tuple[tuple[int, int], ...] = ()) -> bytes:
    """Wrap in Ethernet with VLAN tags given as (tag type, id), outermost first."""
    out = MACS
    for kind, number in vlans:
        out += struct.pack(">HH", kind, number)
    return out + struct.pack(">H", ethertype) + payload


def pppoe(packet: bytes, protocol: int = 0x21) -> bytes:
    """PPPoE session data (RFC 2516), which has ethertype 0x8864."""
    return struct.pack(">BBHHH", 0x11, 0, 7, len(packet) + 2, protocol) + packet


def mpls(packet: bytes, *labels: int) -> bytes:
    """A stack of MPLS labels, outermost first, which has ethertype 0x8847."""
    last = len(labels) - 1
    stack = (struct.pack(">I", label << 12 | (at == last) << 8 | 64) for at, label in enumerate(labels))
    return b"".join(stack) + packet


def ipv4(
    payload: bytes,
    protocol: int,
    src: str = "192.0.2.1",
    dst: str = "198.51.100.2",
    *,
    options: bytes = b"",
    frag: int = 0,
    ident: int = 7,
    ttl: int = 61,
    total: int | None = None,
) -> bytes:
    """An IPv4 packet; `frag` is the raw flags-and-offset field."""
    size = 20 + len(options) + len(payload) if total is None else total
    ihl = 5 + len(options) // 4
    head = struct.pack(">BBHHHBBH", 0x40 | ihl, 0, size, ident, frag, ttl, protocol, 0)
    return head + ipaddress.IPv4Address(src).packed + ipaddress.IPv4Address(dst).packed + options + payload


def ipv6(
    payload: bytes, protocol: int, src: str = "2001:db8::1", dst: str = "2001:db8::2", *, hops: int = 60
) -> bytes:
    """An IPv6 packet; extension headers are part of `payload`."""
    head = struct.pack(">IHBB", 0x60000000, len(payload), protocol, hops)
    return head + ipaddress.IPv6Address(src).packed + ipaddress.IPv6Address(dst).packed + payload


def tcp(
    sport: int,
    dport: int,
    flags: int = 2,
    payload: bytes = b"",
    *,
    seq: int = 1,
    options: bytes = b"",
    window: int = 8192,
) -> bytes:
    """A TCP segment."""
    offset = (5 + len(options) // 4) << 4
    return struct.pack(">HHIIBBHHH", sport, dport, seq, 0, offset, flags, window, 0, 0) + options + payload


def udp(sport: int, dport: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """A UDP datagram."""
    return struct.pack(">HHHH", sport, dport, 8 + len(payload) if length is None else length, 0) + payload


def extension(next_header: int, body: bytes = b"\0" * 6) -> bytes:
    """An IPv6 options-like extension header (body 6 + 8n bytes)."""
    return bytes([next_header, (len(body) - 6) // 8]) + body


def fragment6(next_header: int, offset: int, more: int, ident: int = 99) -> bytes:
    """An IPv6 fragment header; `offset` in units of 8 bytes."""
    return struct.pack(">BBHI", next_header, 0, offset << 3 | more, ident)


def rows_of(frames: list[bytes], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Lay frames out as the matrix that the parser takes."""
    data = np.zeros((len(frames), width), np.uint8)
    for number, frame in enumerate(frames):
        cut = frame[:width]
        data[number, : len(cut)] = np.frombuffer(cut, np.uint8)
    return data, np.array([min(len(frame), width) for frame in frames], np.uint16)


def batch_of(
    frames: list[bytes],
    *,
    width: int = 216,
    weight: float | list[float] = 1.0,
    hook: int = Hook.INGRESS,
    reason: int = 0,
    link: int = 1,
    whole: bool = True,
    time_ns: int = 0,
) -> PacketBatch:
    """Parse frames into a batch."""
    data, captured = rows_of(frames, width)
    return parse_packets(
        data,
        captured,
        link=link,
        length=np.array([len(frame) for frame in frames], np.uint32),
        time_ns=time_ns + np.arange(len(frames), dtype=np.int64),
        weight=np.broadcast_to(np.asarray(weight, np.float64), len(frames)).copy(),
        hook=hook,
        reason=reason,
        whole=whole,
    )
