"""Filters of classic BPF for packet sockets: assembled from lines with labels, and attached.

Sources: Documentation/networking/filter.rst, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence

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
