"""TCP segments as they come from the wire, with what differs from one to the next left open."""

from __future__ import annotations

from msgspec import Struct

from fwtop.model.rule import Range
from fwtop.model.traffic.protocols import TCP

Open = tuple[bytes | int, ...]  # known bytes, and numbers of bytes that may be anything
_IP_HEADER = {4: 20, 6: 40}
_TCP_HEADER = 20
_MAX_HOPS = 30


def length_of(parts: Open) -> int:
    """Return the number of bytes."""
    return sum(part if isinstance(part, int) else len(part) for part in parts)


def flat(parts: Open) -> tuple[bytes, bytes]:
    """Return the bytes and a mask of those that are known."""
    data = b"".join(bytes(part) for part in parts)
    known = b"".join(bytes(part) if isinstance(part, int) else b"\xff" * len(part) for part in parts)
    return data, known


def cut(parts: Open, first: int, end: int) -> Open:
    """Return the bytes from one place to another."""
    found: list[bytes | int] = []
    at = 0
    for part in parts:
        size = part if isinstance(part, int) else len(part)
        low, high = max(first - at, 0), min(end - at, size)
        if low < high:
            found.append(high - low if isinstance(part, int) else part[low:high])
        at += size
    return tuple(found)


class Segment(Struct, frozen=True):
    """One segment to a port, of a client whose operating system, distance and own port are not known."""

    system: str
    step: str  # in words: SYN, banner
    family: int
    dport: int
    flags: int
    first_ttl: int
    windows: tuple[Range, ...]
    options: Open
    payload: Open = ()
    ip_id: int | None = None  # None: anything
    sport: int | None = None  # None: any of the client's own ports
    other: bool = False  # in place of another one, so not counted beside it

    @property
    def ttls(self) -> Range:
        """The TTLs with which it may arrive."""
        return Range(self.first_ttl - _MAX_HOPS, self.first_ttl)

    @property
    def header(self) -> int:
        """The length of the TCP header, bytes."""
        return _TCP_HEADER + length_of(self.options)

    @property
    def length(self) -> int:
        """The total length of the IP packet, bytes."""
        return _IP_HEADER[self.family] + self.header + length_of(self.payload)

    @property
    def packet(self) -> Open:
        """The whole packet from the IP header on."""
        window: bytes | int = 2
        if len(self.windows) == 1 and self.windows[0].low == self.windows[0].high:
            window = self.windows[0].low.to_bytes(2, "big")
        sport: bytes | int = 2 if self.sport is None else self.sport.to_bytes(2, "big")
        offset = bytes((self.header // 4 << 4, self.flags))
        tcp: Open = (sport, self.dport.to_bytes(2, "big"), 8, offset, window, 2, b"\0\0", *self.options)
        return (*self._ip_header(), *tcp, *self.payload)

    def _ip_header(self) -> Open:
        if self.family == 6:
            size = (self.length - _IP_HEADER[6]).to_bytes(2, "big")
            return (b"\x60", 3, size + bytes((TCP,)), 1, 16, 16)
        head = b"\x45\0" + self.length.to_bytes(2, "big")
        serial: bytes | int = 2 if self.ip_id is None else self.ip_id.to_bytes(2, "big")
        return (head, serial, b"\x40\0", 1, bytes((TCP,)), 2, 4, 4)
