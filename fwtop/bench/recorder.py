"""An independent, slow packet parser and recorder, to check fwtop's own against."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from scapy.error import Scapy_Exception
from scapy.utils import RawPcapReader

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
_EXTENSIONS = (0, 43, 60)  # hop-by-hop, routing, destination options
_FRAGMENT = 44
ETHERNET, LINUX_COOKED, LINUX_COOKED_2, RAW = 1, 113, 276, (12, 101, 228, 229)
_PPPOE, _MPLS = 0x8864, (0x8847, 0x8848)
_PPP = {0x0021: 0x0800, 0x0057: 0x86DD}
_VERSIONS = {4: 0x0800, 6: 0x86DD}


class Packet(Struct, frozen=True):
    """The fields of one packet that the accuracy table needs."""

    source: str
    protocol: int
    sport: int | None = None
    dport: int | None = None
    payload: bytes = b""
    later_fragment: bool = False


def parse(data: bytes, link: int = ETHERNET) -> Packet | None:
    """Parse one packet; None if it isn't IP or is truncated within a header."""
    try:
        start, kind = _network(data, link)
        if kind == 0x0800:
            return _ipv4(data[start:])
        if kind == 0x86DD:
            return _ipv6(data[start:])
    except (struct.error, IndexError):
        return None
    return None


def _network(data: bytes, link: int) -> tuple[int, int]:
    if link in RAW:
        return 0, 0x0800 if data[0] >> 4 == 4 else 0x86DD
    if link == LINUX_COOKED_2:
        start, kind = 20, _word(data, 0)
    else:
        start = 16 if link == LINUX_COOKED else 14
        kind = _word(data, start - 2)
    while kind in _VLAN_TYPES:
        start, kind = start + 4, _word(data, start + 2)
    if kind == _PPPOE:
        return start + 8, _PPP.get(_word(data, start + 6), 0)
    if kind not in _MPLS:
        return start, kind
    while not data[start + 2] & 1:
        start += 4
    return start + 4, _VERSIONS.get(data[start + 4] >> 4, 0)


def _word(data: bytes, at: int) -> int:
    return int(struct.unpack_from(">H", data, at)[0])


def _ipv4(data: bytes) -> Packet:
    header = (data[0] & 15) * 4
    total, offset = struct.unpack_from(">HxxH", data, 2)
    source = str(ipaddress.IPv4Address(data[12:16]))
    body = data[header : total if total >= header else None]
    return _transport(source, data[9], body, later=bool(offset & 0x1FFF))


def _ipv6(data: bytes) -> Packet:
    length, protocol = struct.unpack_from(">HB", data, 4)
    source = str(ipaddress.IPv6Address(data[8:24]))
    body, later = data[40 : 40 + length if length else None], False
    while protocol in _EXTENSIONS or protocol == _FRAGMENT:
        size = 8 if protocol == _FRAGMENT else (body[1] + 1) * 8
        if protocol == _FRAGMENT:
            later = bool(struct.unpack_from(">H", body, 2)[0] >> 3)
        protocol, body = body[0], body[size:]
        if later:
            break
    return _transport(source, protocol, body, later=later)


def _transport(source: str, protocol: int, body: bytes, *, later: bool) -> Packet:
    if later:
        return Packet(source, protocol, payload=body, later_fragment=True)
    if protocol not in (6, 17) or len(body) < 8:
        return Packet(source, protocol, payload=body)
    sport, dport = struct.unpack_from(">HH", body)
    header = (body[12] >> 4) * 4 if protocol == 6 and len(body) > 12 else 8
    return Packet(source, protocol, sport, dport, body[header:])


def capture_records(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield (bytes, wire length, link type) of each packet in a pcap or pcapng file, gzipped or not."""
    try:
        with RawPcapReader(str(path)) as reader:
            for data, about in reader:
                yield data, about.wirelen, getattr(about, "linktype", None) or reader.linktype
    except Scapy_Exception:
        raise FwtopError(f"{safe_text(path)} is neither pcap nor pcapng; nothing was measured") from None
