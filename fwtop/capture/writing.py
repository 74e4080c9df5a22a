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
