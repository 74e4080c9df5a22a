"""What the kernel tells of connections: how full the tracking table is, how TCP is served, the open sockets.

Sockets are read at most once a second and in bounded time, by sock_diag(7) (linux/inet_diag.h, linux/tcp.h:
struct tcp_info). A dump goes by hash, so where it ends early it is a uniform sample: `SocketTable.share` says
of how many. The rest is in proc(5) (net/ipv4/proc.c): `PassiveOpens` counts completed handshakes (SYN cookies
included), `TCPDelivered` our acknowledged segments: neither grows by packets with a spoofed source.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections import deque

import numpy as np
from msgspec import Struct

from fwtop.kernel import sockets
from fwtop.kernel.procfs import parse_conntrack_stats, parse_paired, read_int, read_text
from fwtop.model.traffic.counters import ConntrackSample, TcpService, seconds_to_full
from fwtop.model.traffic.packets import U8, Connections, ListenQueue, Mask, SocketTable

_EVERY_SECONDS = 1.0
_TIMES = 50.0  # a reading's CPU time is 1/50 of a core at most
_RETRY_SECONDS = 5.0
_BUDGET_SECONDS = 0.025  # of CPU time for a reading
_MOST = 8_192  # connections: shares to ±1.1 percentage points
_TIMEOUT_SECONDS = 0.2  # for the kernel's answer
_HEADER, _MESSAGE = 16, 72  # struct nlmsghdr, struct inet_diag_msg
_INFO_BYTES = 232  # of struct tcp_info, up to tcpi_snd_wnd (Linux 5.4)
_PORT, _PEER_PORT, _PEER, _COOKIE, _READ_QUEUE, _WRITE_QUEUE = 4, 6, 24, 44, 56, 60
_FAMILIES = ((socket.AF_INET, 4), (socket.AF_INET6, 6))
_QUEUES, _ATTRIBUTE = struct.Struct("=II"), struct.Struct("=HH")


class ConnectionMeter:
    """Reads the table; remembers since when each connection is known."""

    def __init__(self) -> None:
        self._due = 0.0
        self._cookies = np.zeros(0, np.uint64)
        self._first = np.zeros(0)
        self._overflows: tuple[float, int] | None = None
        self.last: SocketTable | None = None  # None: the kernel tells nothing

    def poll(self) -> SocketTable | None:
        """Return the table, read anew if that is due."""
        now = time.monotonic()
        if now < self._due:
            return self.last
        try:
            begun = time.thread_time()
            self.last = self._read(now, begun + _BUDGET_SECONDS)
            self._due = now + max(_EVERY_SECONDS, _TIMES * (time.thread_time() - begun))
        except OSError:  # a kernel without inet_diag, or one too busy to answer
            self.last, self._due = None, now + _RETRY_SECONDS
        return self.last

    def _read(self, now: float, end: float) -> SocketTable:
        queues = tuple(item for family, _ in _FAMILIES for item in _listening(family))
        ports = np.array(sorted({item.port for item in queues}), np.uint16)
        parts: list[Connections] = []
        number, whole = 0, True
        for family, version in _FAMILIES if len(ports) else ():
            rows, complete = _messages(family, _MOST - number, end)
            number += len(rows)
            whole &= complete
            parts.append(_columns(rows, version))
        total = parse_paired(read_text("/proc/net/snmp")).get("Tcp", {}).get("CurrEstab", 0)
        share = 1.0 if whole else min(1.0, number / max(total, number, 1))
        found = _joined(parts)
        found = found.select(np.isin(found.port, ports) & _is_remote(found))
        return SocketTable(self._with_age(found, now), share, queues, self._lost(now))

    def _with_age(self, found: Connections, now: float) -> Connections:
        place = np.searchsorted(self._cookies, found.cookie)
        place = np.minimum(place, max(len(self._cookies) - 1, 0))
        known = self._cookies[place] == found.cookie if len(self._cookies) else np.zeros(len(found), np.bool_)
        first = np.full(len(found), now)
        first[known] = self._first[place[known]]
        order = np.argsort(found.cookie)
        self._cookies, self._first = found.cookie[order], first[order]
        found.seen[:] = now - first
        return found

    def _lost(self, now: float) -> float:
        """Return the overflows of listen queues a second since the last reading."""
        counted = parse_paired(read_text("/proc/net/netstat")).get("TcpExt", {}).get("ListenOverflows", 0)
        before, self._overflows = self._overflows, (now, counted)
        return (counted - before[1]) / max(now - before[0], 1e-3) if before is not None else 0.0


def _listening(family: int) -> list[ListenQueue]:
    found = []
    for data in sockets.tcp_dump(family, sockets.LISTEN_STATE, _TIMEOUT_SECONDS):
        for at in _starts(data):
            port = int.from_bytes(data[at + _PORT : at + _PORT + 2], "big")
            waiting, limit = _QUEUES.unpack_from(data, at + _READ_QUEUE)
            found.append(ListenQueue(port, waiting, limit))
    return found


def _messages(family: int, most: int, end: float) -> tuple[U8, bool]:
    """Return the messages about open connections, one a row, and whether these are all.

    Those of one dump have the same attributes in the same order: struct tcp_info is found once a datagram.
    """
    parts: list[U8] = []
    left, width = most, _MESSAGE + _INFO_BYTES
    for data in sockets.tcp_dump(family, sockets.OPEN_STATES, _TIMEOUT_SECONDS, sockets.TCP_INFO):
        starts = np.array(_starts(data), np.int64)
        at = _info_at(data, int(starts[0])) if len(starts) else None
        if at is not None:
            raw = np.frombuffer(data, np.uint8)
            starts = starts[starts + at + _INFO_BYTES <= len(raw)][:left]
            rows = np.empty((len(starts), width), np.uint8)
            rows[:, :_MESSAGE] = raw[starts[:, None] + np.arange(_MESSAGE)]
            rows[:, _MESSAGE:] = raw[(starts + at)[:, None] + np.arange(_INFO_BYTES)]
            parts.append(rows)
            left -= len(rows)
        if left <= 0 or time.thread_time() > end:
            return np.concatenate(parts), False
    return (np.concatenate(parts) if parts else np.zeros((0, width), np.uint8)), True


def _starts(data: bytes) -> list[int]:
    at, found = 0, []
    while at + _HEADER + _MESSAGE <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        if length < _HEADER + _MESSAGE or at + length > len(data):
            break
        found.append(at + _HEADER)
        at += (length + 3) & ~3
    return found


def _info_at(data: bytes, start: int) -> int | None:
    """Return the place of struct tcp_info in a message, None if it has none or a shorter one."""
    end = min(
        len(data), start - _HEADER + int.from_bytes(data[start - _HEADER : start - _HEADER + 4], "little")
    )
    at = start + _MESSAGE
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if kind == sockets.TCP_INFO:
            return at + 4 - start if length >= 4 + _INFO_BYTES else None
        at += max(4, (length + 3) & ~3)
    return None


def _columns(rows: U8, version: int) -> Connections:
    """Parse messages; IPv4 over an IPv6 socket counts as IPv4."""

    def field(at: int, kind: str) -> np.ndarray:
        size = np.dtype(kind).itemsize
        return np.ascontiguousarray(rows[:, at : at + size]).view(kind)[:, 0]

    def info(at: int, kind: str) -> np.ndarray:
        return field(_MESSAGE + at, kind)

    hi, lo = field(_PEER, ">u8").astype(np.uint64), field(_PEER + 8, ">u8").astype(np.uint64)
    family = np.full(len(rows), version, np.uint8)
    if version == 4:
        hi, lo = np.zeros(len(rows), np.uint64), field(_PEER, ">u4").astype(np.uint64)
    else:
        mapped = (hi == 0) & (lo >> np.uint64(32) == 0xFFFF)
        family[mapped] = 4
        lo[mapped] &= np.uint64(0xFFFFFFFF)
    return Connections(
        family=family,
        hi=hi,
        lo=lo,
        peer_port=field(_PEER_PORT, ">u2").astype(np.uint16),
        port=field(_PORT, ">u2").astype(np.uint16),
        cookie=field(_COOKIE, "=u8"),
        received=info(128, "=u8"),
        segments_in=info(152, "=u4"),
        segments_out=info(156, "=u4"),
        since_received=info(52, "=u4") / 1e3,
        since_sent=info(44, "=u4") / 1e3,
        unread=field(_READ_QUEUE, "=u4"),
        unsent=field(_WRITE_QUEUE, "=u4"),
        window=info(228, "=u4"),
        mss=info(16, "=u4"),
        held=info(176, "=u8") / 1e6,
        seen=np.zeros(len(rows)),
    )


def _joined(parts: list[Connections]) -> Connections:
    if not parts:
        return Connections.empty()
    names = Connections.__struct_fields__
    return Connections(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _is_remote(found: Connections) -> Mask:
    """Mark the connections that don't come from this host itself."""
    four = (found.family == 4) & (found.lo >> np.uint64(24) == 127)
    return np.asarray(~four & ~((found.family == 6) & (found.hi == 0) & (found.lo == 1)))


_SYSCTL = "/proc/sys/net/netfilter/nf_conntrack_"
_STATS = "/proc/net/stat/nf_conntrack"
_HORIZON_SECONDS, _FALLING_SECONDS = 3.0, 1.0  # time constants of the average growth, to smooth bursts


class ConntrackMeter:
    """Samples the connection-tracking table, interval by interval."""

    def __init__(self) -> None:
        self._count = read_int(_SYSCTL + "count")
        self._stats = parse_conntrack_stats(read_text(_STATS))
        self._growth = 0.0

    def sample(self, seconds: float, new_connections: int | None) -> ConntrackSample | None:
        """Return the sample since the last call, or None where connection tracking is off.

        `new_connections` comes from the BPF program at the end of the hooks. If it can't count them (None),
        the table's growth is used, which misses connections that ended within the interval.
        """
        limit = read_int(_SYSCTL + "max")
        if not limit:
            return None
        count, stats = read_int(_SYSCTL + "count"), parse_conntrack_stats(read_text(_STATS))
        growth = (count - self._count) / seconds if seconds > 0 else 0.0
        constant = _HORIZON_SECONDS if growth > self._growth else _FALLING_SECONDS  # a rule ends it at once
        self._growth += (growth - self._growth) * (1 - math.exp(-seconds / constant))
        new = new_connections if new_connections is not None else max(0, count - self._count)
        sample = ConntrackSample(
            count=count,
            max=limit,
            new_per_s=new / seconds if seconds > 0 else 0.0,
            insert_failed=max(0, stats.insert_failed - self._stats.insert_failed),
            drop=max(0, stats.drop - self._stats.drop),
            early_drop=max(0, stats.early_drop - self._stats.early_drop),
            seconds_to_full=seconds_to_full(limit - count, self._growth),
            growth_per_s=self._growth,
        )
        self._count, self._stats = count, stats
        return sample


_WINDOW_SECONDS = 3.0


class _Reading(Struct, frozen=True):
    at: float  # monotonic seconds
    established: int
    handshakes: int
    acknowledged: int


class TcpServiceMeter:
    """Rates of the TCP counters over the last seconds."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()
        self.handshakes: tuple[float, int] | None = None  # when last read, monotonic; completed since boot

    def sample(self) -> TcpService | None:
        """Return the rates; None before the second call, or if the kernel lacks the counters."""
        reading = parse_service(read_text("/proc/net/snmp"), read_text("/proc/net/netstat"), time.monotonic())
        if reading is None:
            return None
        self.handshakes = reading.at, reading.handshakes
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and readings[1].at <= reading.at - _WINDOW_SECONDS:
            readings.popleft()
        seconds = reading.at - readings[0].at
        if seconds <= 0:
            return None
        return TcpService(
            reading.established,
            max(reading.handshakes - readings[0].handshakes, 0) / seconds,
            max(reading.acknowledged - readings[0].acknowledged, 0) / seconds,
        )


def parse_service(snmp: str, netstat: str, at: float) -> _Reading | None:
    """Parse /proc/net/snmp and /proc/net/netstat; None if a counter is missing."""
    tcp = parse_paired(snmp).get("Tcp", {})
    extended = parse_paired(netstat).get("TcpExt", {})
    if "CurrEstab" not in tcp or "TCPDelivered" not in extended:  # before Linux 4.18
        return None
    return _Reading(at, tcp["CurrEstab"], tcp.get("PassiveOpens", 0), extended["TCPDelivered"])
