"""Sizes of receive rings, by ethtool's ioctl. Source: include/uapi/linux/ethtool.h."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_GRINGPARAM = 0x10
# struct ethtool_ringparam: command; most of rx, rx mini, rx jumbo, tx; present sizes in the same order
_RINGPARAM = struct.Struct("=9I")
_NAME_BYTES = 16  # IFNAMSIZ


def receive_ring(interface: str) -> tuple[int, int] | None:
    """Return an interface's receive ring in packets and the most that it can have; None if it has none."""
    buffer = ctypes.create_string_buffer(_RINGPARAM.pack(_GRINGPARAM, *([0] * 8)), _RINGPARAM.size)
    name = interface.encode()[: _NAME_BYTES - 1]
    request = struct.pack("16sQ16x", name, ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        try:
            fcntl.ioctl(channel, _SIOCETHTOOL, request)
        except OSError:
            return None
    _, most, _, _, _, size, *_ = _RINGPARAM.unpack(buffer.raw)
    return (size, most) if size and most else None
