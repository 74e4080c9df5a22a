"""The little of the netlink protocol that fwtop speaks: headers, attributes, requests with an answer.

Source: netlink(7), include/uapi/linux/netlink.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x001, 0x004, 0x300
NLM_F_EXCL, NLM_F_CREATE = 0x200, 0x400
_HEADER = struct.Struct("<IHHII")  # length, type, flags, sequence, port
_ERROR, _DONE = 2, 3
_NESTED = 0x8000
_TIMEOUT_SECONDS = 2.0
_RECEIVE_BYTES = 1 << 16


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, body) of each message in a datagram; what is cut short ends it."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind = struct.unpack_from("<IH", data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def attributes(body: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of each attribute from an offset on, the flag bits of the type removed."""
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("<HH", body, at)
        if length < 4 or at + length > len(body):
            return
        yield kind & 0x3FFF, body[at + 4 : at + length]
        at += _aligned(length)


def attribute(kind: int, value: bytes) -> bytes:
    """Encode one attribute, padded."""
    length = 4 + len(value)
    return (struct.pack("<HH", length, kind) + value).ljust(_aligned(length), b"\0")


def nested(kind: int, *inner: bytes) -> bytes:
    """Encode an attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(inner))


def message(kind: int, flags: int, body: bytes, sequence: int = 1) -> bytes:
    """Encode one message."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def dump(protocol: int, kind: int, body: bytes) -> Iterator[bytes]:
    """Yield the bodies that the kernel answers to a dump request; raises OSError."""
    with _open(protocol) as channel:
        channel.send(message(kind, NLM_F_REQUEST | NLM_F_DUMP, body))
        while True:
            for answered, answer in messages(channel.recv(_RECEIVE_BYTES)):
                if answered == _DONE:
                    return
                if answered == _ERROR:
                    _raise(answer)
                yield answer


def request(protocol: int, kind: int, body: bytes, flags: int = 0) -> None:
    """Ask for a change and wait for the kernel's word; raises OSError with its errno."""
    with _open(protocol) as channel:
        send(channel, kind, body, flags)


def send(channel: socket.socket, kind: int, body: bytes, flags: int = 0) -> None:
    """Like `request`, over a socket that stays open."""
    channel.send(message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body))
    while True:
        for answered, answer in messages(channel.recv(_RECEIVE_BYTES)):
            if answered == _ERROR:
                _raise(answer)
                return


def _raise(answer: bytes) -> None:
    code = -int(struct.unpack_from("<i", answer)[0])
    if code:
        raise OSError(code, os.strerror(code))


def _open(protocol: int) -> socket.socket:
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    channel.settimeout(_TIMEOUT_SECONDS)
    return channel


def _aligned(length: int) -> int:
    return (length + 3) & ~3
