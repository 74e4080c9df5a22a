"""Packets of a few protocols and ports that arrive at an interface, whoever they are for.

A packet socket sees them before the bridge and before every rule but XDP's. A filter of classic BPF leaves
all others alone, so these cost that comparison. Source: packet(7).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator

from msgspec import Struct

from fwtop.kernel import classic_bpf
from fwtop.kernel.classic_bpf import IF_BITS, IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_HALF_X, RETURN
from fwtop.model.traffic.protocols import TCP, UDP

HEADER_BYTES = 128  # of a packet, from its network header on
_BUFFER_BYTES = 1 << 16  # a flood fills it at once; what does not fit costs no copy
_ETH_P_ALL, _ETH_P_IP, _ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
_SOL_PACKET, _IGNORE_OUTGOING = 263, 23
_SYN = 2


class Wanted(Struct, frozen=True):
    """What to hear: whole protocols without ports, and TCP and UDP from or to ports."""

    protocols: tuple[int, ...]
    tcp: tuple[int, ...]  # without what has SYN
    udp: tuple[int, ...]


class Overhearing:
    """A packet socket at one interface, in the namespace of the caller."""

    def __init__(self, interface: str, wanted: Wanted) -> None:
        """Open it; raises OSError."""
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
        try:
            classic_bpf.attach(self._socket, _filter(wanted))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            with contextlib.suppress(OSError):  # before Linux 4.20 `packets` leaves those out
                self._socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
            self._socket.setblocking(False)
            self._socket.bind((interface, _ETH_P_ALL))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._socket.fileno()

    def packets(self, most: int) -> Iterator[bytes]:
        """Yield the beginnings of up to `most` packets, unread; raises OSError when the interface is gone."""
        for _ in range(most):
            try:
                data, address = self._socket.recvfrom(HEADER_BYTES)
            except BlockingIOError:
                return
            if address[2] != socket.PACKET_OUTGOING:
                yield data

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _filter(wanted: Wanted) -> list[classic_bpf.Line]:
    def ports(chosen: Collection[int]) -> list[classic_bpf.Line]:
        tests: list[classic_bpf.Line] = [(IF_EQUAL, port, "take", "") for port in chosen]
        return [(LOAD_HALF_X, 0), *tests, (LOAD_HALF_X, 2), *tests, (RETURN, 0)]

    whole: list[classic_bpf.Line] = [
        *((IF_EQUAL, number, "take", "") for number in wanted.protocols),
        (IF_EQUAL, TCP, "tcp", ""),
        (IF_EQUAL, UDP, "udp", "leave"),
    ]
    return [
        (LOAD_HALF, classic_bpf.PROTOCOL),
        (IF_EQUAL, _ETH_P_IP, "ipv4", ""),
        (IF_EQUAL, _ETH_P_IPV6, "", "leave"),
        (classic_bpf.X_NUMBER, 40),
        (LOAD_BYTE, 6),
        *whole,
        "ipv4",
        (LOAD_HALF, 6),
        (IF_BITS, 0x1FFF, "leave", ""),  # a later fragment
        (classic_bpf.X_IPV4_HEADER, 0),
        (LOAD_BYTE, 9),
        *whole,
        "tcp",
        (classic_bpf.LOAD_BYTE_X, 13),
        (IF_BITS, _SYN, "leave", ""),
        *ports(wanted.tcp),
        "udp",
        *ports(wanted.udp),
        "take",
        (RETURN, HEADER_BYTES),
        "leave",
        (RETURN, 0),
    ]
