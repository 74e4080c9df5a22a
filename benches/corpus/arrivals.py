"""Packets as they arrive at the watched host, from descriptions of what hosts send."""

from __future__ import annotations

import struct
from random import Random

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from fwtop.lab.network import VICTIM_4, VICTIM_6
from fwtop.lab.traffic.pools import PUBLIC_OCTETS
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import TCP, UDP

CAPTURED = 216  # bytes of a live record
FULL = 1448  # bytes of a full segment with timestamps
HOST_4, HOST_6 = (
    Prefix.parse(text).value.to_bytes(size, "big") for text, size in ((VICTIM_4, 4), (VICTIM_6, 16))
)
_FLAGS = {"F": 1, "S": 2, "R": 4, "P": 8, "A": 16}
# Public networks that announce no routes, or hardly any: those of the US Department of Defense and the like
_SILENT = (6, 7, 11, 21, 22, 25, 26, 28, 29, 30, 33, 55, 56, 214, 215)
LIVED_IN = tuple(octet for octet in PUBLIC_OCTETS if octet not in _SILENT)
_LINK = bytes.fromhex("020000000001020000000002")
_NEIGHBOURS = 3  # hosts of one network that talk to the same server
_PUBLIC_6 = (0x2400, 0x2600, 0x2607, 0x2A00, 0x2A01, 0x2A02)


class Sender(Struct, frozen=True):
    """A host by its packed address, and the TTL of its packets when they arrive."""

    address: bytes
    ttl: int


def senders(rng: Random, count: int, *, family: int = 4) -> list[Sender]:
    """Draw real hosts: several share a network and its distance."""
    made: list[Sender] = []
    while len(made) < count:
        hops = rng.randrange(6, 25)
        if family == 4:
            network = bytes([rng.choice(LIVED_IN)]) + rng.randbytes(2)
        else:
            network = (
                struct.pack("!HH", rng.choice(_PUBLIC_6), rng.getrandbits(16)) + rng.randbytes(4) + bytes(7)
            )
        made += [
            Sender(network + bytes([rng.randrange(1, 255)]), rng.choice((64, 64, 128, 255)) - hops)
            for _ in range(rng.randrange(1, 2 * _NEIGHBOURS))
        ]
    return made[:count]


class Arrivals(Struct):
    """Frames with their times in seconds and sizes on the wire; `data` is cut to what is captured.

    `peers` draws hosts that stay the same while others come and go, such as the ends of tunnels.
    """

    rng: Random
    seconds: float
    peers: Random
    at: list[float] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    size: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.at)

    def when(self) -> float:
        """Draw a time within the window."""
        return self.rng.random() * self.seconds

    def packet(self, at: float, sender: Sender, protocol: int, head: bytes, size: int | None = None) -> None:
        """Add an IP packet; `head` are the first bytes of its payload, `size` the length of all of it."""
        if not 0 <= at < self.seconds:
            return
        size = len(head) if size is None else size
        if len(sender.address) == 4:
            front = struct.pack(
                "!BBHHHBBH", 0x45, 0, 20 + size, self.rng.getrandbits(16), 0x4000, sender.ttl, protocol, 0
            )
            whole = _LINK + b"\x08\0" + front + sender.address + HOST_4 + head
        else:
            front = struct.pack("!IHBB", 6 << 28, size, protocol, sender.ttl)
            whole = _LINK + b"\x86\xdd" + front + sender.address + HOST_6 + head
        self.at.append(at)
        self.data.append(whole[:CAPTURED])
        self.size.append(max(60, len(whole) + size - len(head)))

    def datagram(
        self, at: float, sender: Sender, ports: tuple[int, int], head: bytes, size: int | None = None
    ) -> None:
        """Add a UDP datagram from and to the ports; `size` is that of its payload."""
        size = len(head) if size is None else size
        self.packet(at, sender, UDP, struct.pack("!HHHH", *ports, 8 + size, 0) + head, 8 + size)

    def segment(
        self, at: float, sender: Sender, ports: tuple[int, int], flags: str, *, numbers: tuple[int, int],
        window: int = 501, options: bytes = b"", head: bytes = b"", size: int | None = None,
    ) -> None:  # fmt: skip
        """Add a TCP segment with these sequence and acknowledgement numbers."""
        size = len(head) if size is None else size
        seq, ack = (number & 0xFFFFFFFF for number in numbers)
        words = (20 + len(options)) // 4 << 4
        bits = sum(_FLAGS[flag] for flag in flags)
        start = struct.pack("!HHIIBBHHH", *ports, seq, ack, words, bits, window, 0, 0)
        self.packet(at, sender, TCP, start + options + head, 20 + len(options) + size)


class Connection(Struct):
    """A TCP connection as the watched host receives it; `at` is the time of the next segment."""

    to: Arrivals
    sender: Sender
    ports: tuple[int, int]
    at: float
    seq: int = 0
    ack: int = 0
    stamp: int = 0  # TCP timestamp

    def __post_init__(self) -> None:
        rng = self.to.rng
        self.seq, self.ack, self.stamp = rng.getrandbits(32), rng.getrandbits(32), rng.getrandbits(31)

    def open(self, round_trip: float = 0.03) -> None:
        """Send the SYN, and the ACK that completes the handshake."""
        self._begin("S", 0, 64240)
        self.at += round_trip
        self.acknowledge(0)

    def accept(self) -> None:
        """Send the SYN-ACK to a connection that the watched host opens."""
        self._begin("SA", self.ack, 65160)

    def _begin(self, flags: str, ack: int, window: int) -> None:
        options = bytes.fromhex(f"020405b40402080a{self.stamp:08x}0000000001030307")
        numbers = (self.seq, ack)
        self.to.segment(
            self.at, self.sender, self.ports, flags, numbers=numbers, window=window, options=options
        )
        self.seq += 1

    def send(self, head: bytes, size: int | None = None, *, flags: str = "PA") -> None:
        """Send data, of which `head` are the first bytes."""
        self._plain(flags, head, size)
        self.seq += len(head) if size is None else size

    def acknowledge(self, count: int) -> None:
        """Acknowledge `count` bytes more."""
        self.ack += count
        self._plain("A", b"", None)

    def close(self, flags: str = "FA") -> None:
        """Send a FIN, or a RST."""
        self._plain(flags, b"", None)
        self.seq += 1

    def _plain(self, flags: str, head: bytes, size: int | None) -> None:
        elapsed = self.stamp + int(self.at * 1000) & 0xFFFFFFFF
        options = struct.pack("!BBBBII", 1, 1, 8, 10, elapsed, elapsed - 40 & 0xFFFFFFFF)
        numbers = (self.seq, self.ack)
        self.to.segment(
            self.at, self.sender, self.ports, flags, numbers=numbers, options=options, head=head, size=size
        )


def connection(to: Arrivals, sender: Sender, dport: int, at: float) -> Connection:
    """Return a connection of a client to a port of the watched host."""
    return Connection(to, sender, (to.rng.randrange(32_768, 61_000), dport), at)


class Frames(Struct, frozen=True):
    """Frames as arrays: `data` is (n, CAPTURED), zero-padded; `vector` is -1 for ordinary packets."""

    at: NDArray[np.float64]
    data: NDArray[np.uint8]
    size: NDArray[np.uint32]
    captured: NDArray[np.uint16]
    vector: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.at)

    @staticmethod
    def of(arrivals: Arrivals, vector: int) -> Frames:
        """Return arrivals as arrays."""
        n = len(arrivals)
        joined = b"".join(piece.ljust(CAPTURED, b"\0") for piece in arrivals.data)
        return Frames(
            np.array(arrivals.at, np.float64),
            np.frombuffer(joined, np.uint8).reshape(n, CAPTURED).copy(),
            np.array(arrivals.size, np.uint32),
            np.array([len(piece) for piece in arrivals.data], np.uint16),
            np.full(n, vector, np.int16),
        )

    def select(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Frames:
        """Return some of the rows."""
        return Frames(*(getattr(self, name)[rows] for name in self.__struct_fields__))

    @staticmethod
    def joined(parts: list[Frames]) -> Frames:
        """Join frames in order of time."""
        names = Frames.__struct_fields__
        every = Frames(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
        return every.select(np.argsort(every.at, kind="stable"))
