"""The samples and exact counts of one window, input of aggregation and judgement."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct, field

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.connections import SocketTable
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import U8, U16, U32, U64, PacketBatch


class Interval(Struct, frozen=True):
    """What one poll saw: exact arrivals and the samples that came with them."""

    started: float  # Unix seconds
    seconds: float
    packets: int  # arrived, exact
    samples: int  # of arrived packets; 0 also where nobody was watching


class Window(Struct, frozen=True):
    """Weighted samples by hook, and the exact counters of the same interval.

    Of a long capture, `arrived` is a uniform subset with scaled weights: sums of `weight` always estimate
    packets.
    """

    started: float  # Unix seconds
    seconds: float
    arrived: PacketBatch  # hooks INGRESS and XDP
    dropped: PacketBatch  # hook DROP
    accepted: PacketBatch  # hook ACCEPTED
    counters: Counters
    live: bool = True
    own: tuple[Prefix, ...] = ()  # this host's addresses, if known
    intervals: tuple[Interval, ...] = ()  # live: the polls that the window is made of, oldest first
    clock: float | None = None  # Unix seconds minus packet time; None: the first packet came at `started`
    sockets: SocketTable | None = None  # live: the connections that this host serves, as last read


class OriginColumns(Struct, frozen=True):
    """Country (two ASCII letters as a big-endian number, 0 unknown) and AS number (0 unknown)."""

    country: U16
    asn: U32


class OriginLookup(Protocol):
    """Maps addresses to country and autonomous system."""

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        """Look n addresses up."""
        ...

    def as_name(self, asn: int) -> str | None:
        """Return the sanitised name of an autonomous system, if known."""
        ...

    @property
    def stale(self) -> str:
        """The day of the data if that is long ago, else ""."""
        ...


class NoOrigin(Struct, frozen=True):
    """The lookup without a database: every origin is unknown."""

    names: dict[int, str] = field(default_factory=dict)
    stale: str = ""

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:  # noqa: ARG002
        """Return zeros."""
        import numpy as np

        return OriginColumns(np.zeros(len(family), np.uint16), np.zeros(len(family), np.uint32))

    def as_name(self, asn: int) -> str | None:
        """Return a given name, else None."""
        return self.names.get(asn)
