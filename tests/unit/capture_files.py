"""Capture files made by hand in every form that the readers know, and where the public ones are.

The "DDoS Packet Capture Collection" (L.F. Haaijer, 2022, StopDDoS/packet-captures) is not part of this
repository. FWTOP_CAPTURES names the directory with four of its files; tests of them are skipped without it.
"""

import os
import struct
from pathlib import Path

CAPTURES = Path(os.environ.get("FWTOP_CAPTURES", "/work/shared/captures"))


def pcap(
    packets: list[tuple[int, bytes, int]], *, order: str = "<", nano: bool = False, link_type: int = 1
) -> bytes:
    """A classic pcap of (time in ns, bytes, length on the wire)."""
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    out = bytearray(struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, link_type))
    for time_ns, data, length in packets:
        part = time_ns % 10**9 // (1 if nano else 1000)
        out += struct.pack(f"{order}IIII", time_ns // 10**9, part, len(data), length) + data
    return bytes(out)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """One pcapng block."""
    body += b"\0" * (-len(body) % 4)
    size = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + size + body + size


def option(code: int, value: bytes, order: str = "<") -> bytes:
    """One option of a block."""
    return struct.pack(f"{order}HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def section(order: str = "<") -> bytes:
    """A section header block."""
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link_type: int = 1, *, order: str = "<", snap: int = 0, options: bytes = b"") -> bytes:
    """An interface description block."""
    end = option(0, b"", order) if options else b""
    return block(1, struct.pack(f"{order}HHI", link_type, 0, snap) + options + end, order)


def enhanced(
    data: bytes,
    ticks: int,
    *,
    number: int = 0,
    length: int | None = None,
    order: str = "<",
    options: bytes = b"",
) -> bytes:
    """An enhanced packet block."""
    wire = len(data) if length is None else length
    head = struct.pack(f"{order}IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), wire)
    return block(6, head + data + b"\0" * (-len(data) % 4) + options, order)


def simple(data: bytes, length: int | None = None, order: str = "<") -> bytes:
    """A simple packet block."""
    return block(3, struct.pack(f"{order}I", len(data) if length is None else length) + data, order)


def obsolete(data: bytes, ticks: int, *, number: int = 0, order: str = "<") -> bytes:
    """An obsolete packet block."""
    head = struct.pack(f"{order}HHIIII", number, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(2, head + data, order)
