"""An application that only receives: `python -I -m fwtop.bench.receiver`, in the victim's namespace.

It reads UDP datagrams by recvmmsg(2), 1,024 per call, as the servers of the published tables did, and answers
JSON lines: count, filter on/off (a socket filter that drops everything), busy_poll on/off, bind to a family.
It exits at end of input.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from typing import Any

from fwtop.lab.processes import answer

PORT = 9999
_BATCH = 1024
_BYTES = 256
_COMMAND_POLL_SECONDS = 0.02
_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_BUSY_POLL = 26, 27, 46
_BUSY_POLL_MICROSECONDS = 50
_RECEIVE_BYTES = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Message(ctypes.Structure):
    """struct mmsghdr, with its struct msghdr inlined."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int64),  # an int, and the padding that ends a msghdr
        ("received", ctypes.c_uint32),
    ]


class Receiver:
    """A bound UDP socket and the number of datagrams received."""

    def __init__(self) -> None:
        self.socket = _bound(4)
        self.datagrams = 0
        self._room = ctypes.create_string_buffer(_BATCH * _BYTES)
        start = ctypes.addressof(self._room)
        self._vectors = (_Vector * _BATCH)(
            *(_Vector(start + number * _BYTES, _BYTES) for number in range(_BATCH))
        )
        size = ctypes.sizeof(_Vector)
        first = ctypes.addressof(self._vectors)
        self._messages = (_Message * _BATCH)(
            *(_Message(vectors=first + number * size, vector_count=1) for number in range(_BATCH))
        )

    def bind(self, family: int) -> None:
        """Receive over the other family from now on."""
        self.socket.close()
        self.socket = _bound(family)

    def take(self) -> bool:
        """Receive up to one batch; False if nothing was queued."""
        number = _libc.recvmmsg(
            self.socket.fileno(), self._messages, _BATCH, socket.MSG_DONTWAIT, ctypes.c_void_p(None)
        )
        if number < 0:
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR):
                return False
            raise OSError(code, os.strerror(code))
        self.datagrams += number
        return True

    def filter(self, *, on: bool) -> None:
        """Attach or detach a classic BPF program that drops every datagram: `ret #0`."""
        if on:
            program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
            self.socket.setsockopt(
                socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
            )
        else:
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def busy_poll(self, *, on: bool) -> None:
        """Turn SO_BUSY_POLL on or off: receiving calls poll the device."""
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUSY_POLL, _BUSY_POLL_MICROSECONDS if on else 0)


def _bound(family: int) -> socket.socket:
    made = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    made.bind(("", PORT))
    return made


def _obey(receiver: Receiver, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "filter":
        receiver.filter(on=bool(command["on"]))
    elif command["do"] == "busy_poll":
        receiver.busy_poll(on=bool(command["on"]))
    elif command["do"] == "bind":
        receiver.bind(int(command["family"]))
    return {"datagrams": receiver.datagrams}


def main() -> int:
    """Receive until the end of standard input."""
    receiver = Receiver()
    answer({"ready": True})
    pending = b""
    while True:
        readable, _, _ = select.select([0, receiver.socket.fileno()], [], [])
        if 0 in readable:
            chunk = os.read(0, 65_536)
            if not chunk:
                return 0
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                answer(_obey(receiver, json.loads(line)))
        end = time.monotonic() + _COMMAND_POLL_SECONDS
        while time.monotonic() < end and receiver.take():
            pass


if __name__ == "__main__":
    sys.exit(main())
