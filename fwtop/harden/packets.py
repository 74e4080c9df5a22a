"""The packets of a conversation as they are on the wire, each with a serial number that survives netfilter.

The number is the identification of IPv4 and the flow label of IPv6.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator

from msgspec import Struct

from fwtop.model.traffic.protocols import TCP, UDP

_SYN, _SYN_ACK, _ACK, _PUSH = 0x02, 0x12, 0x10, 0x18
_FIRST = {True: 1_000, False: 5_000}  # sequence numbers, by: of who opens it
_DATA = b"fwtop"
_WINDOW = 65_535
_ROUNDS = 3  # a rule may count datagrams


class Flow(Struct, frozen=True):
    """A real conversation of this machine."""

    protocol: int
    ours: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int  # our side's
    peer: ipaddress.IPv4Address | ipaddress.IPv6Address
    peer_port: int
    opened_by_us: bool = False

    def __str__(self) -> str:
        name = {TCP: "tcp", UDP: "udp"}.get(self.protocol, self.protocol)
        how = "to" if self.opened_by_us else "from"
        return f"{name}/{self.port} {how} {self.peer} port {self.peer_port}"


class Packet(Struct, frozen=True):
    """One packet: whether it comes in, and its bytes from the IP header on."""

    incoming: bool
    data: bytes


def conversation(flow: Flow, first: int) -> Iterator[Packet]:
    """Yield a flow's packets in order, with serial numbers from `first` on."""
    if flow.protocol == TCP:
        opener, other = _FIRST[True], _FIRST[False]
        size = len(_DATA)
        steps = [
            (True, _SYN, opener, 0, b""),
            (False, _SYN_ACK, other, opener + 1, b""),
            (True, _ACK, opener + 1, other + 1, b""),
            (True, _PUSH, opener + 1, other + 1, _DATA),
            (False, _PUSH, other + 1, opener + 1 + size, _DATA),
        ]
        for number, (by_opener, flags, sequence, acknowledged, data) in enumerate(steps):
            head = struct.pack("!IIBBHHH", sequence, acknowledged, 5 << 4, flags, _WINDOW, 0, 0)
            yield _packet(flow, by_opener, first + number, head, data)
        return
    for number in range(2 * _ROUNDS):
        head = struct.pack("!HH", 8 + len(_DATA), 0)
        yield _packet(flow, number % 2 == 0, first + number, head, _DATA)


def _packet(flow: Flow, by_opener: bool, serial: int, head: bytes, data: bytes) -> Packet:
    incoming = by_opener != flow.opened_by_us
    ends = (flow.peer, flow.ours) if incoming else (flow.ours, flow.peer)
    ports = (flow.peer_port, flow.port) if incoming else (flow.port, flow.peer_port)
    segment = struct.pack("!HH", *ports) + head + data
    pseudo = ends[0].packed + ends[1].packed + struct.pack("!II", len(segment), flow.protocol)
    place = 16 if flow.protocol == TCP else 6  # of the checksum
    check = struct.pack("!H", _checksum(pseudo + segment) or 0xFFFF)
    segment = segment[:place] + check + segment[place + 2 :]
    if flow.ours.version == 6:
        header = struct.pack("!IHBB", 6 << 28 | serial, len(segment), flow.protocol, 64)
        return Packet(incoming, header + ends[0].packed + ends[1].packed + segment)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), serial, 0, 64, flow.protocol, 0)
    header += ends[0].packed + ends[1].packed
    header = header[:10] + struct.pack("!H", _checksum(header)) + header[12:]
    return Packet(incoming, header + segment)


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF & ~total
