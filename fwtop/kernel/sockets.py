"""Sockets of this network namespace, the processes that hold them, and their end.

Sources: sock_diag(7), include/uapi/linux/inet_diag.h, proc(5).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from fwtop.kernel import netlink
from fwtop.kernel.procfs import read_text
from fwtop.model.traffic.protocols import NUMBERS

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
# struct inet_diag_req_v2: family, protocol, extensions, padding, states, socket id
_REQUEST = struct.Struct("=BBBBI48s")
# In struct inet_diag_msg: ports and addresses of its id, and idiag_inode
_PORTS, _ADDRESS_AT, _PEER_AT, _INODE_AT = struct.Struct(">4xHH"), 8, 24, 68
_TCP_CLOSE, _TCP_LISTEN = 7, 10  # an unconnected UDP socket is in state CLOSE
_WAITING = {"tcp": 1 << _TCP_LISTEN, "udp": 1 << _TCP_CLOSE}
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
    address: str = ""  # that it is bound to; "": all

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return bool(self.address) and ipaddress.ip_address(self.address).is_loopback


def listening_sockets() -> list[ListeningSocket]:
    """List TCP sockets that listen and UDP sockets without a peer, a bounded number; raises OSError."""
    return [
        ListeningSocket(protocol, port, inode, _address(body, _ADDRESS_AT))
        for protocol, body in _sockets(_WAITING)
        if (port := _PORTS.unpack_from(body)[0])
        and (inode := int.from_bytes(body[_INODE_AT : _INODE_AT + 4], "little"))
    ]


def connected_sockets() -> list[tuple[str, str, int, str, int]]:
    """List protocol, own address and port, and the peer's, of connected sockets, a bounded number.

    Raises OSError.
    """
    found = []
    for protocol, body in _sockets(dict.fromkeys(_WAITING, 1 << TCP_ESTABLISHED)):
        port, peer_port = _PORTS.unpack_from(body)
        found.append((protocol, _address(body, _ADDRESS_AT), port, _address(body, _PEER_AT), peer_port))
    return found


def _sockets(states: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield protocol and struct inet_diag_msg of the sockets in some states."""
    for protocol, wanted in states.items():
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, NUMBERS[protocol], 0, 0, wanted, bytes(48))
            answers = netlink.dump(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, request)
            with contextlib.closing(answers):
                yield from ((protocol, body) for body in islice(answers, _MOST))


def _address(body: bytes, at: int) -> str:
    """Return an address, "" for none; IPv4 over an IPv6 socket is IPv4."""
    found = ipaddress.ip_address(body[at : at + (4 if body[0] == socket.AF_INET else 16)])
    mapped = getattr(found, "ipv4_mapped", None)
    return "" if found.is_unspecified else str(mapped or found)


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


class HolderSearch:
    """Looks for the processes that hold sockets, for a bounded time; the next call goes on."""

    def __init__(self) -> None:
        self._waiting: list[int] = []  # processes that are still to be looked at, in reverse
        self._sought: frozenset[int] = frozenset()  # what was missing when the search began

    def holders(self, missing: Collection[int], seconds: float) -> dict[int, int | None]:
        """Return the processes of the inodes that were found out about; None: no process holds it.

        What was opened since a search began may belong to a process that was looked at before.
        """
        if not missing:
            self._waiting = []
            return {}
        if not self._waiting:
            self._waiting, self._sought = processes()[::-1], frozenset(missing)
        found: dict[int, int | None] = {}
        end, left = time.monotonic() + seconds, set(missing)
        while self._waiting and left and time.monotonic() < end:
            pid = self._waiting.pop()
            held = left.intersection(sockets_of(pid))
            found |= dict.fromkeys(held, pid)
            left -= held
        return found if self._waiting else found | dict.fromkeys(left & self._sought)


def command_name(pid: int) -> str:
    """Return a process's name, as it chose it itself; "" if it has ended."""
    return read_text(f"/proc/{pid}/comm").rstrip("\n")


def user_of(pid: int, *, named: bool) -> str:
    """Return the name of a process's effective user, or its number; "" if it has ended.

    /etc/passwd is read here, because the directories that getpwuid(3) may ask can keep it waiting.
    """
    words = read_text(f"/proc/{pid}/status").partition("\nUid:")[2].split(maxsplit=2)
    entries = (line.split(":") for line in read_text("/etc/passwd").splitlines()) if named else ()
    return next((entry[0] for entry in entries if entry[2:3] == words[1:2]), "".join(words[1:2]))


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
