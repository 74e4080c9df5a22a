"""Connections that this host serves, as its sockets show them: their packets, and who holds them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.traffic import mix
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.connections import Connections, SocketTable
from fwtop.model.traffic.packets import U64, PacketBatch

_SAME = 0.5  # of the connections are of sources of a greater group: they belong to its attack


def flows_of(held: Connections) -> U64:
    """Hash the columns that tell a connection from all others."""
    return _flow(held.hi, held.lo, held.peer_port, held.port)


def flows_of_packets(packets: PacketBatch) -> U64:
    """Hash the same of each packet."""
    return _flow(packets.src_hi, packets.src_lo, packets.sport, packets.dport)


def _flow(hi: U64, lo: U64, peer_port: np.ndarray, port: np.ndarray) -> U64:
    ports = peer_port.astype(np.uint64) << np.uint64(16) | port.astype(np.uint64)
    return mix(mix(hi, lo), ports)


def source_of(held: Connections) -> U64:
    """Hash the source of each connection: its address, of IPv6 the /64 that one host may use."""
    return mix(held.hi, np.where(held.family == 6, np.uint64(0), held.lo))


class Held(Struct, frozen=True, eq=False, dict=True):
    """The connections to one port that do the same."""

    port: int
    connections: Connections
    table: SocketTable  # all connections that were read

    @cached_property
    def source(self) -> U64:
        """Of each connection its source, as a hash."""
        return source_of(self.connections)

    @property
    def number(self) -> int:
        """How many there are, estimated."""
        return round(len(self.connections) / self.table.share)

    @cached_property
    def senders(self) -> tuple[tuple[Prefix, int], ...]:
        """The sources (address, or IPv6 /64) and how many of the connections each has, most first."""
        held = self.connections
        _, first, counts = np.unique(self.source, return_index=True, return_counts=True)
        found = []
        for at, number in zip(first.tolist(), counts.tolist(), strict=True):
            six = int(held.family[at]) == 6
            value = int(held.hi[at]) << 64 if six else int(held.lo[at])
            found.append((Prefix(6, value, 64) if six else Prefix(4, value, 32), number))
        return tuple(sorted(found, key=lambda item: (-item[1], item[0])))

    @cached_property
    def others(self) -> Connections:
        """Connections to the port that are of other sources, or do something else."""
        every = self.table.connections
        theirs = np.isin(source_of(every), self.source) & (every.segments_out == 0)  # young ones, too
        mine = theirs | np.isin(every.cookie, self.connections.cookie)
        return every.select((every.port == self.port) & ~mine)

    def belongs_to(self, greater: Held) -> bool:
        """Check whether these are most likely of the same attack, by their sources."""
        return self.port == greater.port and float(np.isin(self.source, greater.source).mean()) > _SAME
