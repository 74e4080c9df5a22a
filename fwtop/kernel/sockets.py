"""Sockets of this network namespace, the processes that hold them, and their end.

Sources: sock_diag(7), include/uapi/linux/inet_diag.h, proc(5).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Generator, Iterator
from itertools import islice

from msgspec import Struct

from fwtop.kernel import netlink

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
# struct inet_diag_req_v2: family, protocol, extensions, padding, states, socket id
_REQUEST = struct.Struct("=BBBBI48s")
# In struct inet_diag_msg: source port and address of its id, and idiag_inode
_PORT_AT, _ADDRESS_AT, _INODE_AT = 4, 8, 68
_TCP_CLOSE, _TCP_LISTEN = 7, 10  # an unconnected UDP socket is in state CLOSE
_STATES = {"tcp": (socket.IPPROTO_TCP, 1 << _TCP_LISTEN), "udp": (socket.IPPROTO_UDP, 1 << _TCP_CLOSE)}
_MOST = 4096  # sockets of one protocol and family
_SOCK_DESTROY = 21
TCP_ESTABLISHED, _TCP_FIN_WAIT1, _TCP_CLOSE_WAIT = 1, 4, 8
OPEN_STATES = 1 << TCP_ESTABLISHED | 1 << _TCP_FIN_WAIT1 | 1 << _TCP_CLOSE_WAIT  # those that hold something
LISTEN_STATE = 1 << _TCP_LISTEN
TCP_INFO = 2  # INET_DIAG_INFO: struct tcp_info
_DONE, _ERROR = 3, 2
_DATAGRAM = 1 << 18


class ListeningSocket(Struct, frozen=True):
    """A socket that waits for clients; several may share a port (SO_REUSEPORT, two families)."""

    protocol: str  # "tcp", "udp"
    port: int
    inode: int
    local: bool = False  # bound to a loopback address: only this machine reaches it


def listening_sockets() -> list[ListeningSocket]:
    """List TCP sockets that listen and UDP sockets without a peer, a bounded number; raises OSError."""
    found = []
    for protocol, (number, states) in _STATES.items():
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, number, 0, 0, states, bytes(48))
            answers = netlink.dump(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, request)
            with contextlib.closing(answers):
                found += [_socket(protocol, body) for body in islice(answers, _MOST)]
    return [item for item in found if item.port and item.inode]


def _socket(protocol: str, body: bytes) -> ListeningSocket:
    port = int(struct.unpack_from(">H", body, _PORT_AT)[0])
    size = 4 if body[0] == socket.AF_INET else 16
    address = ipaddress.ip_address(body[_ADDRESS_AT : _ADDRESS_AT + size])
    inode = int(struct.unpack_from("=I", body, _INODE_AT)[0])
    return ListeningSocket(protocol, port, inode, address.is_loopback)


def processes() -> list[int]:
    """List process ids, init last: it holds the sockets that it hands to services."""
    return sorted(
        (int(name) for name in os.listdir("/proc") if name.isdigit()), key=lambda pid: (pid == 1, pid)
    )


def sockets_of(pid: int) -> Iterator[int]:
    """Yield the inodes of the sockets that a process holds, none if it has ended."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:[") and target[8:-1].isdigit():
            yield int(target[8:-1])


def command_name(pid: int) -> str:
    """Return a process's name, as it chose it itself; "" if it has ended."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(64).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return ""


def tcp_dump(family: int, states: int, seconds: float, extension: int = 0) -> Generator[bytes, None, None]:
    """Yield datagrams of messages (struct inet_diag_msg) about TCP sockets; raises OSError.

    A dump goes by hash of addresses and ports: what comes first is a uniform sample of all.
    """
    extensions = 1 << (extension - 1) if extension else 0
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, extensions, 0, states, bytes(48))
    with netlink.open_socket(_NETLINK_SOCK_DIAG, seconds) as channel:
        flags = netlink.NLM_F_REQUEST | netlink.NLM_F_DUMP
        channel.send(netlink.message(_SOCK_DIAG_BY_FAMILY, flags, request))
        while True:
            data = channel.recv(_DATAGRAM)
            kind = int.from_bytes(data[4:6], "little")
            if kind in (_DONE, _ERROR):
                return
            yield data


def destroy(identity: bytes, family: int) -> bool:
    """Close a TCP socket, named by struct inet_diag_sockid, as if its peer had reset it; needs root.

    Returns whether it was still there; raises OSError, EOPNOTSUPP without CONFIG_INET_DIAG_DESTROY.
    """
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, OPEN_STATES, identity)
    try:
        netlink.request(_NETLINK_SOCK_DIAG, _SOCK_DESTROY, request)
    except FileNotFoundError:
        return False
    return True
