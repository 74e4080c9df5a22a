"""DNS queries and the answers of open resolvers (RFC 1035, RFC 6891)."""

from __future__ import annotations

import random
import struct
from typing import Any

from fwtop.model.traffic.dns import type_number, wire_name

_RRSIG, _DNSKEY = type_number("RRSIG"), type_number("DNSKEY")


def dns_wire(name: str) -> bytes:
    """Write a name in wire form; raises ValueError."""
    labels = [label.encode() for label in name.strip(".").split(".") if label]
    if any(len(label) > 63 for label in labels):
        raise ValueError(f"DNS name {name[:60]!r} has a label of more than 63 bytes")
    return wire_name(labels)


def dns_query(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write a query, with EDNS if `edns` is a UDP payload size."""
    edns = int(table.get("edns", 0))
    header = struct.pack("!6H", rng.getrandbits(16), 0x0100, 1, 0, 0, 1 if edns else 0)
    question = dns_wire(table["name"]) + struct.pack("!HH", type_number(table.get("type", "A")), 1)
    return header + question + (_opt(edns) if edns else b"")


def dns_header(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write the header of a query with one question and `additional` records."""
    return struct.pack("!6H", rng.getrandbits(16), 0x0010, 1, 0, 0, int(table.get("additional", 0)))


def dns_response(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write an answer of about `size` bytes: TXT, RRSIG or DNSKEY records for `name`, with EDNS."""
    kind = type_number(table.get("type", "ANY"))
    question = dns_wire(table["name"]) + struct.pack("!HH", kind, 1)
    size, records, count = int(table.get("size", 3000)), b"", 0
    while 12 + len(question) + len(records) + 11 < size:
        records += _record(rng, kind, rng.randint(180, 255))
        count += 1
    header = struct.pack("!6H", rng.getrandbits(16), 0x8180, 1, count, 0, 1)
    return header + question + records + _opt(4096)


def _record(rng: random.Random, kind: int, size: int) -> bytes:
    if kind == _RRSIG:
        data = struct.pack("!HBBIIIH", 1, 8, 2, 3600, 1_900_000_000, 1_899_000_000, 20326)
        data += rng.randbytes(size)
        return b"\xc0\x0c" + struct.pack("!HHIH", 46, 1, 3600, len(data)) + data
    if kind == _DNSKEY:
        data = struct.pack("!HBB", 257, 3, 8) + rng.randbytes(size)
        return b"\xc0\x0c" + struct.pack("!HHIH", 48, 1, 3600, len(data)) + data
    text = bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz0123456789=;-", k=size))
    return b"\xc0\x0c" + struct.pack("!HHIH", 16, 1, 3600, len(text) + 1) + bytes([len(text)]) + text


def _opt(size: int) -> bytes:
    return struct.pack("!BHHIH", 0, 41, size, 0x8000, 0)
