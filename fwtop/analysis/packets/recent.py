"""The newest packets with what is known about each, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.model.traffic.packets import I64, U8, Mask, PacketBatch

MOST_PACKETS = 2_000
Texts = NDArray[np.str_]


class Fate(Enum):
    """What became of a packet."""

    UNKNOWN = "unknown"
    REACHES = "reaches"  # accepted at the end of the input or forward hook
    MINE = "mine"  # dropped by an fwtop rule
    OTHER = "other"  # dropped by another firewall
    KERNEL = "kernel"  # dropped by the kernel for a reason of its own


class Verdict(Struct, frozen=True):
    """A fate with its words: "rule 118", "accepted", "TCP_OLD_DATA"; `inferred`: no sample shows it."""

    fate: Fate
    text: str = ""
    inferred: bool = False


UNKNOWN = Verdict(Fate.UNKNOWN)


class DropReason(Struct, frozen=True):
    """The layer and name of a drop reason; sanitised."""

    layer: str
    name: str


class RecentPackets(Struct, frozen=True, eq=False):
    """What the ring holds at one moment. `numbers` identify packets for the whole observation."""

    arrived: PacketBatch = field(default_factory=PacketBatch.empty)  # oldest first
    numbers: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    dropped: PacketBatch = field(default_factory=PacketBatch.empty)  # samples of the drop hook
    accepted: PacketBatch = field(default_factory=PacketBatch.empty)
    clock_ns: int = 0  # Unix time less packet time
    reasons: Mapping[int, DropReason] = field(default_factory=dict)
    seen: int = 0  # samples since the start of the observation


class PacketList(Struct, frozen=True, eq=False):
    """Packets to list. `verdicts` has an index into `kinds` per packet; in a capture there are none."""

    packets: PacketBatch
    numbers: I64
    clock_ns: int
    who: Texts
    verdicts: U8
    kinds: tuple[Verdict, ...] = (UNKNOWN,)
    judged: bool = True  # False: a capture doesn't tell what became of its packets
    seen: int = 0

    def __len__(self) -> int:
        """Return the number of packets."""
        return len(self.packets)

    @property
    def verdict_texts(self) -> Texts:
        """The words of each packet's verdict."""
        return np.array([kind.text for kind in self.kinds])[self.verdicts]

    def verdict(self, row: int) -> Verdict:
        """Return what became of a packet."""
        return self.kinds[int(self.verdicts[row])]

    def select(self, rows: Mask | NDArray[np.intp]) -> PacketList:
        """Return the packets of these rows."""
        return replace(
            self,
            packets=self.packets.select(rows),
            numbers=self.numbers[rows],
            who=self.who[rows],
            verdicts=self.verdicts[rows],
        )


def captured_packets(packets: PacketBatch, number: int = 0) -> PacketList:
    """List the first packets of a capture, or of a window of it; `number` is that of the first."""
    order = np.argsort(packets.time_ns, kind="stable")[:MOST_PACKETS]
    found = packets.select(order)
    n = len(found)
    numbers = number + np.arange(n, dtype=np.int64)
    return PacketList(
        found, numbers, 0, np.zeros(n, "<U1"), np.zeros(n, np.uint8), judged=False, seen=len(packets)
    )


def kinds_of(verdicts: Sequence[Verdict]) -> tuple[U8, tuple[Verdict, ...]]:
    """Number the distinct verdicts; past 255 of them the rest are unknown."""
    index: dict[Verdict, int] = {UNKNOWN: 0}
    places = [index.setdefault(verdict, len(index)) for verdict in verdicts]
    known = tuple(index)[:256]
    return np.array([place if place < 256 else 0 for place in places], np.uint8), known
