"""Write a MaxMind DB file (format 2.0) from sorted address ranges; used by build.py only.

Format: https://maxmind.github.io/MaxMind-DB/ (CC BY-SA 3.0). Records are 24 bits, so that tree and data
together must stay below 16.7 million: the writer refuses more.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

_MARKER = b"\xab\xcd\xefMaxMind.com"
_EMPTY = -1
_UTF8, _UINT16, _UINT32, _MAP, _UINT64, _ARRAY = 2, 5, 6, 7, 9, 11


def _control(kind: int, size: int) -> bytes:
    extended = bytes([kind - 7]) if kind > 7 else b""
    first = 0 if kind > 7 else kind << 5
    if size < 29:
        return bytes([first | size]) + extended
    if size < 285:
        return bytes([first | 29]) + extended + bytes([size - 29])
    return bytes([first | 30]) + extended + (size - 285).to_bytes(2, "big")


def _text(value: str) -> bytes:
    data = value.encode()
    return _control(_UTF8, len(data)) + data


def _number(value: int, kind: int) -> bytes:
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return _control(kind, len(data)) + data


def _pointer(offset: int) -> bytes:
    if offset < 2048:
        return bytes([0x20 | offset >> 8, offset & 0xFF])
    offset -= 2048
    if offset < 1 << 19:
        return bytes([0x28 | offset >> 16]) + (offset & 0xFFFF).to_bytes(2, "big")
    return bytes([0x30 | (offset - (1 << 19)) >> 24]) + ((offset - (1 << 19)) & 0xFFFFFF).to_bytes(3, "big")


@dataclass
class DataSection:
    """The records: each text stands once, and records point to it."""

    data: bytearray = field(default_factory=bytearray)
    _known: dict[object, int] = field(default_factory=dict)

    def _once(self, key: object, encoded: bytes) -> bytes:
        """Return a pointer to `encoded`, writing it when it is new."""
        if key not in self._known:
            self._known[key] = len(self.data)
            self.data += encoded
        return _pointer(self._known[key])

    def record(self, country: str, asn: int, name: str) -> int:
        """Write the record of a country and an autonomous system, once; return its offset.

        The keys are those of GeoLite2 Country and ASN, so that every reader of those reads this.
        """
        key = (country, asn)
        if key in self._known:
            return self._known[key]
        fields = []
        if country:
            iso = self._once("iso_code", _text("iso_code")) + _text(country)
            submap = self._once(("country", country), _control(_MAP, 1) + iso)
            fields.append(self._once("country", _text("country")) + submap)
        if asn:
            title = self._once("autonomous_system_number", _text("autonomous_system_number"))
            fields.append(title + _number(asn, _UINT32))
        if asn and name:
            title = self._once("autonomous_system_organization", _text("autonomous_system_organization"))
            fields.append(title + self._once(("name", name), _text(name)))
        self._known[key] = len(self.data)
        self.data += _control(_MAP, len(fields)) + b"".join(fields)
        return self._known[key]


class Tree:
    """The binary search tree over sorted, disjoint ranges of 128-bit numbers."""

    def __init__(self, starts: list[int], ends: list[int], offsets: list[int]) -> None:
        self._starts, self._ends, self._offsets = starts, ends, offsets
        self.nodes: list[tuple[int, int]] = []  # child: node number, _EMPTY, or -2 - data offset
        sys.setrecursionlimit(1000)
        self._child(0, 128)

    def _child(self, low: int, bits: int) -> int:
        high = low + (1 << bits) - 1
        first, last = bisect_left(self._ends, low), bisect_right(self._starts, high)
        if first >= last:
            return _EMPTY
        if self._starts[first] <= low and self._ends[first] >= high:
            return -2 - self._offsets[first]
        number = len(self.nodes)
        self.nodes.append((_EMPTY, _EMPTY))
        half = bits - 1
        self.nodes[number] = (self._child(low, half), self._child(low + (1 << half), half))
        return number

    def encoded(self, data_size: int) -> bytes:
        """Return the tree's bytes, 6 a node."""
        count = len(self.nodes)
        if count + 16 + data_size >= 1 << 24:
            raise ValueError(f"{count} nodes and {data_size} bytes of data do not fit 24-bit records")

        def value(child: int) -> int:
            if child == _EMPTY:
                return count
            return child if child >= 0 else count + 16 + (-2 - child)

        return b"".join(value(child).to_bytes(3, "big") for node in self.nodes for child in node)


def metadata(node_count: int, build_epoch: int, kind: str, description: str) -> bytes:
    """Return the metadata section with its marker."""
    entries = {
        "binary_format_major_version": _number(2, _UINT16),
        "binary_format_minor_version": _number(0, _UINT16),
        "build_epoch": _number(build_epoch, _UINT64),
        "database_type": _text(kind),
        "description": _control(_MAP, 1) + _text("en") + _text(description),
        "ip_version": _number(6, _UINT16),
        "languages": _control(_ARRAY, 1) + _text("en"),
        "node_count": _number(node_count, _UINT32),
        "record_size": _number(24, _UINT16),
    }
    return _MARKER + _control(_MAP, len(entries)) + b"".join(_text(k) + v for k, v in entries.items())


def database(tree: Tree, section: DataSection, *, build_epoch: int, kind: str, description: str) -> bytes:
    """Put the file together."""
    encoded = tree.encoded(len(section.data))
    return (
        encoded + bytes(16) + bytes(section.data) + metadata(len(tree.nodes), build_epoch, kind, description)
    )
