"""Packet sockets, and their filters of classic BPF: assembled from lines with labels, and attached.

A packet socket sees packets before the bridge and before every rule but XDP's; a filter leaves all others
alone, so these cost that comparison. Sources: packet(7), Documentation/networking/filter.rst, linux/filter.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from fwtop.model.traffic.protocols import TCP, UDP

LOAD_WORD, LOAD_HALF, LOAD_BYTE = 0x20, 0x28, 0x30  # from the network header on
LOAD_HALF_X, LOAD_BYTE_X = 0x48, 0x50  # from X bytes behind it on
X_NUMBER, X_IPV4_HEADER = 0x01, 0xB1  # set X; the latter: to the length of the header at 0
IF_EQUAL, IF_GREATER, IF_BITS, RETURN = 0x15, 0x25, 0x45, 0x06
PROTOCOL, PACKET_TYPE, RANDOM = (0xFFFFF000 + offset for offset in (0, 4, 56))  # SKF_AD_OFF + SKF_AD_*
_SO_ATTACH_FILTER = 26

# An operation and its operand, for a test also the labels to go to if true and if not ("": on); or a label
Line = str | tuple[int, int] | tuple[int, int, str, str]


def attach(channel: socket.socket, lines: Sequence[Line]) -> None:
    """Let a socket receive only what a filter returns bytes of; raises OSError."""
    places: dict[str, int] = {}
    code: list[tuple[int, int, str, str]] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(code)
        else:
            code.append(line if len(line) == 4 else (*line, "", ""))
    text = b"".join(
        struct.pack("=HBBI", operation, *(places[name] - at - 1 if name else 0 for name in labels), operand)
        for at, (operation, operand, *labels) in enumerate(code)
    )
    held = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HP", len(code), ctypes.addressof(held))  # struct sock_fprog
    channel.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


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
            attach(self._socket, _filter(wanted))
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


def _filter(wanted: Wanted) -> list[Line]:
    def ports(chosen: Collection[int]) -> list[Line]:
        tests: list[Line] = [(IF_EQUAL, port, "take", "") for port in chosen]
        return [(LOAD_HALF_X, 0), *tests, (LOAD_HALF_X, 2), *tests, (RETURN, 0)]

    whole: list[Line] = [
        *((IF_EQUAL, number, "take", "") for number in wanted.protocols),
        (IF_EQUAL, TCP, "tcp", ""),
        (IF_EQUAL, UDP, "udp", "leave"),
    ]
    return [
        (LOAD_HALF, PROTOCOL),
        (IF_EQUAL, _ETH_P_IP, "ipv4", ""),
        (IF_EQUAL, _ETH_P_IPV6, "", "leave"),
        (X_NUMBER, 40),
        (LOAD_BYTE, 6),
        *whole,
        "ipv4",
        (LOAD_HALF, 6),
        (IF_BITS, 0x1FFF, "leave", ""),  # a later fragment
        (X_IPV4_HEADER, 0),
        (LOAD_BYTE, 9),
        *whole,
        "tcp",
        (LOAD_BYTE_X, 13),
        (IF_BITS, _SYN, "leave", ""),
        *ports(wanted.tcp),
        "udp",
        *ports(wanted.udp),
        "take",
        (RETURN, HEADER_BYTES),
        "leave",
        (RETURN, 0),
    ]
