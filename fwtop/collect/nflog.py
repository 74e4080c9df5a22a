"""Accepted packets by NFLOG, where the kernel can't attach a BPF program to netfilter (before 6.4).

Reading needs no privilege of a process that was handed the bound socket. Messages carry a running number,
so what was logged is counted even where the socket's buffer was full. Source: nfnetlink_log.h and
nfnetlink_log.c of the kernel.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass

import numpy as np

from fwtop.collect import netlink
from fwtop.collect.cell import DATA_BYTES
from fwtop.model.packets import U8, U16, U32

_NETLINK_NETFILTER = 12
_PACKET, _CONFIG = 0x0400, 0x0401  # NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_*
_CFG_CMD, _CFG_MODE, _CFG_BUFFER, _CFG_TIMEOUT, _CFG_THRESHOLD, _CFG_FLAGS = 1, 2, 3, 4, 5, 6
_BIND, _COPY_PACKET, _WITH_SEQUENCE = 1, 2, 1
_INDEV, _PAYLOAD, _SEQUENCE = 4, 9, 12
_KERNEL_BATCH = 64  # messages in a datagram
_FLUSH_CENTISECONDS = 10
_DATAGRAM_BYTES = 1 << 16
_SOCKET_BUFFER_BYTES = 1 << 22
_DATAGRAMS_PER_READ = 512
_SEGMENT_BYTES = 1448  # payload of a full TCP segment on Ethernet, with timestamps


def bind(group: int) -> int:
    """Return the descriptor of a socket that gets a group's packets; needs CAP_NET_ADMIN. Raises OSError."""
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    try:
        channel.settimeout(2.0)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        for attributes in (
            netlink.attribute(_CFG_CMD, bytes([_BIND])),
            netlink.attribute(_CFG_MODE, struct.pack("!IBB", DATA_BYTES, _COPY_PACKET, 0)),
            netlink.attribute(_CFG_BUFFER, struct.pack("!I", _DATAGRAM_BYTES))
            + netlink.attribute(_CFG_TIMEOUT, struct.pack("!I", _FLUSH_CENTISECONDS))
            + netlink.attribute(_CFG_THRESHOLD, struct.pack("!I", _KERNEL_BATCH))
            + netlink.attribute(_CFG_FLAGS, struct.pack("!H", _WITH_SEQUENCE)),
        ):
            netlink.send(channel, _CONFIG, struct.pack("!BBH", 0, 0, group) + attributes)
        channel.setblocking(False)
        return channel.detach()
    except BaseException:
        channel.close()
        raise


@dataclass(frozen=True, slots=True)
class Logged:
    """Packets that were logged, each from its IP header on, and how many were logged in all."""

    data: U8  # (n, DATA_BYTES), zero-padded
    captured: U16
    length: U32  # bytes of the IP packet; more than a wire packet has where GRO joined some
    ifindex: U32
    count: int  # logged since the last read, the lost ones included

    @property
    def segments(self) -> U32:
        """How many wire packets each is likely to have been (NFLOG doesn't say)."""
        joined = -(-self.length.astype(np.int64) // _SEGMENT_BYTES)
        return np.where(self.length > 1500, joined, 1).astype(np.uint32)


class NflogReader:
    """Reads a bound socket without blocking."""

    def __init__(self, descriptor: int) -> None:
        self._channel = socket.socket(fileno=descriptor)
        self._next = 0  # the kernel counts from 0 since the group was bound
        self.overruns = 0  # times that the kernel found the buffer full

    def read(self) -> Logged:
        """Take what is pending, at most some ten thousand packets."""
        found: list[tuple[int, int, bytes]] = []
        for _ in range(_DATAGRAMS_PER_READ):
            try:
                datagram = self._channel.recv(_DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1
                continue
            found += parse_datagram(datagram)
        return self._gathered(found)

    def _gathered(self, found: list[tuple[int, int, bytes]]) -> Logged:
        count = 0
        for sequence, _, _ in found:
            count += ((sequence - self._next) & 0xFFFFFFFF) + 1
            self._next = (sequence + 1) & 0xFFFFFFFF
        rows = [payload[:DATA_BYTES].ljust(DATA_BYTES, b"\0") for _, _, payload in found]
        data = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), DATA_BYTES)
        return Logged(
            data,
            np.array([min(len(payload), DATA_BYTES) for _, _, payload in found], np.uint16),
            ip_lengths(data),
            np.array([ifindex for _, ifindex, _ in found], np.uint32),
            count,
        )

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()


def parse_datagram(datagram: bytes) -> list[tuple[int, int, bytes]]:
    """Return (running number, incoming interface, packet) of each packet message; others are skipped."""
    found = []
    for kind, body in netlink.messages(datagram):
        if kind != _PACKET:
            continue
        values = dict(netlink.attributes(body, 4))
        if _SEQUENCE in values and len(values[_SEQUENCE]) == 4:
            ifindex = values.get(_INDEV, b"").ljust(4, b"\0")
            found.append(
                (
                    int.from_bytes(values[_SEQUENCE], "big"),
                    int.from_bytes(ifindex[:4], "big"),
                    values.get(_PAYLOAD, b""),
                )
            )
    return found


def ip_lengths(data: U8) -> U32:
    """Read the total length of each row's IP packet from its header (0: neither version)."""
    wide = data.astype(np.uint32)
    version = wide[:, 0] >> 4
    total_v4 = wide[:, 2] << 8 | wide[:, 3]
    total_v6 = (wide[:, 4] << 8 | wide[:, 5]) + 40
    return np.where(version == 4, total_v4, np.where(version == 6, total_v6, 0)).astype(np.uint32)
