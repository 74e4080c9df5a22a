"""The TCP connections that this host serves, as columns: what shows in state rather than in packets."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from fwtop.model.traffic.packets import F64, KINDS, U8, U16, U32, U64, Mask


class Connections(Struct, frozen=True):
    """Connections that clients opened; one entry each (struct tcp_info, linux/tcp.h)."""

    family: U8
    hi: U64  # the peer's address, as in PacketBatch
    lo: U64
    peer_port: U16
    port: U16  # of the service
    cookie: U64  # the kernel's number of the socket, never used again
    received: U64  # bytes of data
    segments_in: U32  # with data
    segments_out: U32  # with data
    since_received: F64  # seconds since the last data, or since the handshake
    since_sent: F64
    unread: U32  # bytes that the program has not read
    unsent: U32  # bytes that the peer has not acknowledged
    window: U32  # bytes that the peer accepts now
    mss: U32  # bytes of a full segment to the peer
    held: F64  # seconds that sending waited for the peer's window
    seen: F64  # seconds since this connection was first observed: its age at least

    def __len__(self) -> int:
        return len(self.port)

    def select(self, rows: Mask) -> Connections:
        """Return some of them."""
        return Connections(*(getattr(self, name)[rows] for name in self.__struct_fields__))

    @staticmethod
    def empty() -> Connections:
        """Return none."""
        none: list[Any] = [np.zeros(0, KINDS[kind]) for kind in Connections.__annotations__.values()]
        return Connections(*none)


class ListenQueue(Struct, frozen=True):
    """Finished handshakes that wait until a program accepts them."""

    port: int
    waiting: int
    limit: int


class SocketTable(Struct, frozen=True):
    """The served connections of this network namespace at one moment."""

    connections: Connections
    share: float = 1.0  # of all connections, 0 to 1, that were read: a uniform sample of them
    queues: tuple[ListenQueue, ...] = ()
    overflows_per_s: float = 0.0  # handshakes lost because a listen queue was full

    def queue(self, port: int) -> ListenQueue | None:
        """Return the fullest listen queue of a port."""
        found = [item for item in self.queues if item.port == port]
        return max(found, key=lambda item: item.waiting / max(item.limit, 1), default=None)
