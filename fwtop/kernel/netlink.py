"""The subset of the netlink protocol that fwtop speaks: headers, attributes, requests and dumps.

Source: netlink(7), include/uapi/linux/netlink.h, include/uapi/linux/netfilter/nfnetlink.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Generator, Iterator, Sequence

NETLINK_NETFILTER, NETLINK_GENERIC = 12, 16
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x001, 0x004, 0x300
NLM_F_EXCL, NLM_F_CREATE = 0x200, 0x400
NLA_F_NESTED, NLA_F_NET_BYTEORDER = 0x8000, 0x4000
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_NETFILTER_HEADER = struct.Struct(">BBH")  # struct nfgenmsg: family, version, resource
NETFILTER_HEADER_BYTES = _NETFILTER_HEADER.size
_ERROR, _DONE = 2, 3
_TYPE_MASK = 0xFFFF & ~(NLA_F_NESTED | NLA_F_NET_BYTEORDER)
_TIMEOUT_SECONDS = 10.0
_RECEIVE_BYTES = 1 << 18
_NOOP = 1  # NLMSG_NOOP
_SOL_NETLINK, _GET_STRICT_CHK = 270, 12
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, body) of each message in a datagram; stop at the first truncated one."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if length < HEADER.size or at + length > len(data):
            return
        yield kind, data[at + HEADER.size : at + length]
        at += _aligned(length)


def attributes(body: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of each attribute from offset `at`, the type without its flag bits."""
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4 or at + length > len(body):
            return
        yield kind & _TYPE_MASK, body[at + 4 : at + length]
        at += _aligned(length)


def attribute(kind: int, value: bytes) -> bytes:
    """Encode one attribute, padded to 4 bytes."""
    length = 4 + len(value)
    return (struct.pack("=HH", length, kind) + value).ljust(_aligned(length), b"\0")


def nested(kind: int, *inner: bytes) -> bytes:
    """Encode an attribute that contains attributes."""
    return attribute(kind | NLA_F_NESTED, b"".join(inner))


def message(kind: int, flags: int, body: bytes, sequence: int = 1) -> bytes:
    """Encode one message."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def netfilter_header(family: int = 0, resource: int = 0) -> bytes:
    """Encode struct nfgenmsg, which precedes the attributes of every nfnetlink message."""
    return _NETFILTER_HEADER.pack(family, 0, resource)


def c_string(value: bytes) -> str:
    """Decode a NUL-terminated string."""
    return value.partition(b"\0")[0].decode("utf-8", "replace")


def u32(value: bytes | None) -> int:
    """Decode 32 bits in the machine's order; 0 without any."""
    return int(struct.unpack_from("=I", value)[0]) if value else 0


def open_socket(protocol: int, seconds: float = _TIMEOUT_SECONDS) -> socket.socket:
    """Open a netlink socket in the current network namespace, with a receive timeout; raises OSError."""
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    channel.settimeout(seconds)
    return channel


def dump(protocol: int, kind: int, body: bytes, *, filtered: bool = False) -> Generator[bytes, None, None]:
    """Send a dump request and yield the body of each answer; raises OSError.

    `filtered`: the kernel leaves out what does not match the request's header.

    The kernel packs a dump into buffers as large as the largest read so far (netlink_recvmsg, 32 KiB at
    most), and silently ends one whose first entry is larger: an iptables rule with two u32 matches is. So
    read an acknowledgement first.
    """
    with open_socket(protocol) as channel:
        if filtered:
            channel.setsockopt(_SOL_NETLINK, _GET_STRICT_CHK, 1)
        if protocol == NETLINK_NETFILTER:
            send(channel, _NOOP, b"")
        channel.send(message(kind, NLM_F_REQUEST | NLM_F_DUMP, body))
        while True:
            for answered, answer in messages(channel.recv(_RECEIVE_BYTES)):
                if answered == _DONE:
                    return
                if answered == _ERROR:
                    _check(answer)
                    return
                yield answer


def get(protocol: int, kind: int, body: bytes) -> bytes:
    """Send a request with a single answer and return its body; raises OSError."""
    with open_socket(protocol) as channel:
        return ask(channel, kind, body)


def ask(channel: socket.socket, kind: int, body: bytes) -> bytes:
    """Do the same over an open socket."""
    channel.send(message(kind, NLM_F_REQUEST, body))
    for answered, answer in messages(channel.recv(_RECEIVE_BYTES)):
        if answered == _ERROR:
            _check(answer)
        return answer
    return b""


def request(protocol: int, kind: int, body: bytes, flags: int = 0) -> None:
    """Request a change and wait for its acknowledgement; raises OSError with the kernel's errno."""
    with open_socket(protocol) as channel:
        send(channel, kind, body, flags)


def send(channel: socket.socket, kind: int, body: bytes, flags: int = 0) -> None:
    """Do the same over an open socket."""
    send_encoded(channel, message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body))


def send_encoded(channel: socket.socket, sent: bytes) -> None:
    """Send messages of which the last asks for an acknowledgement; raises OSError with the first error."""
    channel.send(sent)
    while True:
        for answered, answer in messages(channel.recv(_RECEIVE_BYTES)):
            if answered == _ERROR:
                _check(answer)
                return


def send_all(channel: socket.socket, requests: Sequence[tuple[int, bytes]], flags: int = 0) -> None:
    """Send several requests (kind and body) in one system call; raises OSError with the first error.

    The kernel carries out each of them, whatever came of those before.
    """
    sent = b"".join(
        _padded(message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body, number))
        for number, (kind, body) in enumerate(requests, 1)
    )
    for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):  # an error comes back with the whole request
        channel.setsockopt(socket.SOL_SOCKET, option, len(sent) + _RECEIVE_BYTES)
    if sent:
        channel.send(sent)
    first: OSError | None = None
    left = len(requests)
    while left:
        for answered, answer in messages(channel.recv(_RECEIVE_BYTES)):
            if answered != _ERROR:
                continue
            left -= 1
            try:
                _check(answer)
            except OSError as error:
                first = first or error
    if first is not None:
        raise first


def _padded(sent: bytes) -> bytes:
    return sent.ljust(_aligned(len(sent)), b"\0")


def _check(answer: bytes) -> None:
    """Raise the error of an NLMSG_ERROR message; 0 is an acknowledgement."""
    code = -int(struct.unpack_from("=i", answer)[0])
    if code:
        raise OSError(code, os.strerror(code))


def _aligned(length: int) -> int:
    return (length + 3) & ~3
