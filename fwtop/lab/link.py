"""What ethtool knows of an interface: its driver, and what its far end's queue could not take."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

import numpy as np

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x03, 0x1B, 0x1D, 0x37
_SS_STATS = 1
_NAME_BYTES = 32
_LOST = b"tx_queue_0_xdp_xmit_errors"


class Link:
    """One interface of the namespace in which it was opened."""

    def __init__(self, interface: str) -> None:
        self._name = interface.encode()[:15]
        self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names = self._statistics_names()
        self._index = names.index(_LOST) if _LOST in names else -1
        self._stats = np.zeros(1 + len(names), np.uint64)
        self._stats[:1].view(np.uint32)[:] = (_GSTATS, len(names))
        self._request = struct.pack("16sQ", self._name, self._stats.ctypes.data)

    @property
    def driver(self) -> str:
        """Return the name of its driver, or nothing."""
        answer = self._ask(struct.pack("I", _GDRVINFO).ljust(196, b"\0"))
        return answer[4:36].partition(b"\0")[0].decode("ascii", "replace")

    def lost(self) -> int:
        """Return the frames sent by XDP that found the far end's queue full, since the link was made."""
        if self._index < 0:
            return 0
        fcntl.ioctl(self._control, _SIOCETHTOOL, self._request)
        return int(self._stats[1 + self._index])

    def close(self) -> None:
        """Close the socket that asks."""
        self._control.close()

    def _statistics_names(self) -> list[bytes]:
        count = struct.unpack_from(
            "I", self._ask(struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0)), 16
        )[0]
        head = struct.pack("III", _GSTRINGS, _SS_STATS, count)
        text = self._ask(head.ljust(len(head) + _NAME_BYTES * count, b"\0"))[len(head) :]
        rows = (text[start : start + _NAME_BYTES] for start in range(0, len(text), _NAME_BYTES))
        return [row.partition(b"\0")[0] for row in rows]

    def _ask(self, command: bytes) -> bytes:
        buffer = np.frombuffer(command, np.uint8).copy()
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._control, _SIOCETHTOOL, struct.pack("16sQ", self._name, buffer.ctypes.data))
        return buffer.tobytes()
