"""Packets written as a capture, in a module of its own: who records does without what unpacks captures."""

from __future__ import annotations

import struct
from collections.abc import Iterable

ETHERNET, RAW = 1, 101  # LINKTYPE_…
_MAGIC = 0xA1B23C4D  # times in nanoseconds
_SNAP = 65_535


def pcap_of(packets: Iterable[tuple[int, int, bytes]], link: int) -> bytes:
    """Return a capture of packets: Unix time in ns, length on the wire, and the bytes captured of each."""
    out = bytearray(struct.pack("<IHHiIII", _MAGIC, 2, 4, 0, 0, _SNAP, link))
    for time_ns, length, data in packets:
        seconds, nanoseconds = divmod(max(time_ns, 0), 10**9)
        out += struct.pack("<IIII", seconds & 0xFFFFFFFF, nanoseconds, len(data), max(length, len(data)))
        out += data
    return bytes(out)


# pcapng (draft-ietf-opsawg-pcapng): block types and options
_SECTION, _INTERFACE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 5, 6
_RESOLUTION, _COMMENT, _DROPPED = 9, 1, 5  # if_tsresol, opt_comment, isb_ifdrop


def pcapng_head(link: int) -> bytes:
    """Return a section header and an interface, whose times are in nanoseconds."""
    section = _block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    nanoseconds = _option(_RESOLUTION, bytes((9,)))
    return section + _block(_INTERFACE, struct.pack("<HHI", link, 0, _SNAP) + nanoseconds)


def pcapng_packet(time_ns: int, length: int, data: bytes, comment: str) -> bytes:
    """Return a packet with a comment."""
    head = struct.pack("<IIIII", 0, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), max(length, len(data)))
    return _block(_PACKET, head + _padded(data) + _option(_COMMENT, comment.encode()))


def pcapng_lost(time_ns: int, packets: int) -> bytes:
    """Return how many packets are missing so far."""
    head = struct.pack("<III", 0, time_ns >> 32, time_ns & 0xFFFFFFFF)
    return _block(_STATISTICS, head + _option(_DROPPED, struct.pack("<Q", packets)))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value) + bytes(4)  # the only one, and the end


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + length + body + length


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
