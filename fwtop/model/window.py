"""The packets and exact counts of one window: what aggregation fills and judgement reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from fwtop.model.address import Prefix
from fwtop.model.counters import Counters
from fwtop.model.packets import U8, U16, U32, U64, PacketBatch


@dataclass(frozen=True, slots=True)
class Window:
    """Samples by hook, weighted, and the exact counters of the same interval.

    For a long capture `arrived` is a uniform subset with its weights scaled up, so that sums of
    `weight` estimate packets in either case.
    """

    started: float  # Unix seconds
    seconds: float
    arrived: PacketBatch  # hooks INGRESS and XDP
    dropped: PacketBatch  # hook DROP
    accepted: PacketBatch  # hook ACCEPTED
    counters: Counters
    live: bool = True
    own: tuple[Prefix, ...] = ()  # this host's addresses, where known


@dataclass(frozen=True, slots=True)
class OriginColumns:
    """Country (two ASCII letters as a big-endian number, 0 unknown) and AS number (0 unknown)."""

    country: U16
    asn: U32


class OriginLookup(Protocol):
    """Knows the country and autonomous system of addresses."""

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        """Look n addresses up."""
        ...

    def as_name(self, asn: int) -> str | None:
        """Return the sanitised name of an autonomous system, if known."""
        ...


@dataclass(frozen=True, slots=True)
class NoOrigin:
    """The lookup where there is no database: everything is unknown."""

    names: dict[int, str] = field(default_factory=dict)

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:  # noqa: ARG002
        """Return zeros."""
        import numpy as np

        return OriginColumns(np.zeros(len(family), np.uint16), np.zeros(len(family), np.uint32))

    def as_name(self, asn: int) -> str | None:
        """Return None, or a name that was given."""
        return self.names.get(asn)
