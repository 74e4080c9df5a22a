"""Packets of a few protocols and ports that arrive at an interface, whoever they are for.

A packet socket sees them before the bridge and before every rule but XDP's. A filter of classic BPF leaves
all others alone, so these cost that comparison. Sources: packet(7), linux/filter.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Collection, Iterator

from msgspec import Struct

from fwtop.model.traffic.protocols import TCP, UDP

HEADER_BYTES = 128  # of a packet, from its network header on
_BUFFER_BYTES = 1 << 16  # a flood fills it at once; what does not fit costs no copy
_ETH_P_ALL, _ETH_P_IP, _ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
_SOL_PACKET, _IGNORE_OUTGOING = 263, 23
_SO_ATTACH_FILTER = 26
_SKF_AD_PROTOCOL = 0xFFFFF000  # SKF_AD_OFF + SKF_AD_PROTOCOL
_LD_HALF_AT, _LD_BYTE_AT, _LD_HALF_X, _LD_BYTE_X = 0x28, 0x30, 0x48, 0x50  # BPF_LD | size | ABS or IND
_LDX_IP_HEADER, _LDX_NUMBER, _JEQ, _JSET, _RETURN = 0xB1, 0x01, 0x15, 0x45, 0x06
_SYN = 2
_LABEL = -1  # in place of an operation
_Line = tuple[int, int | str, str, str]  # operation, operand, labels to go to if true and if not


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
            _attach(self._socket, _filter(wanted))
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


def _filter(wanted: Wanted) -> list[_Line]:
    """Return the filter's lines; one without a label goes on with the next."""

    def ports(name: str, chosen: Collection[int]) -> list[_Line]:
        tests: list[_Line] = [(_JEQ, port, "take", "") for port in chosen]
        return [
            (_LABEL, name, "", ""),
            (_LD_HALF_X, 0, "", ""),
            *tests,
            (_LD_HALF_X, 2, "", ""),
            *tests,
            leave,
        ]

    leave: _Line = (_RETURN, 0, "", "")
    whole: list[_Line] = [(_JEQ, number, "take", "") for number in wanted.protocols]
    return [
        (_LD_HALF_AT, _SKF_AD_PROTOCOL, "", ""),
        (_JEQ, _ETH_P_IP, "ipv4", ""),
        (_JEQ, _ETH_P_IPV6, "", "leave"),
        (_LDX_NUMBER, 40, "", ""),
        (_LD_BYTE_AT, 6, "", ""),
        *whole,
        (_JEQ, TCP, "tcp", ""),
        (_JEQ, UDP, "udp", "leave"),
        (_LABEL, "ipv4", "", ""),
        (_LD_HALF_AT, 6, "", ""),
        (_JSET, 0x1FFF, "leave", ""),  # a later fragment
        (_LDX_IP_HEADER, 0, "", ""),
        (_LD_BYTE_AT, 9, "", ""),
        *whole,
        (_JEQ, TCP, "tcp", ""),
        (_JEQ, UDP, "udp", "leave"),
        (_LABEL, "tcp", "", ""),
        (_LD_BYTE_X, 13, "", ""),
        (_JSET, _SYN, "leave", ""),
        *ports("tcp ports", wanted.tcp),
        *ports("udp", wanted.udp),
        (_LABEL, "take", "", ""),
        (_RETURN, HEADER_BYTES, "", ""),
        (_LABEL, "leave", "", ""),
        leave,
    ]


def _attach(channel: socket.socket, lines: list[_Line]) -> None:
    """Assemble a filter and attach it (struct sock_fprog of struct sock_filter); raises OSError."""
    places: dict[str, int] = {}
    code: list[tuple[int, int, str, str]] = []
    for operation, operand, true, false in lines:
        if operation == _LABEL:
            places[str(operand)] = len(code)
        else:
            code.append((operation, int(operand), true, false))
    text = b"".join(
        struct.pack(
            "=HBBI", operation, *(places[name] - at - 1 if name else 0 for name in (true, false)), operand
        )
        for at, (operation, operand, true, false) in enumerate(code)
    )
    held = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HP", len(code), ctypes.addressof(held))
    channel.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
