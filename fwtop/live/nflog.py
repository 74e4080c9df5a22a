"""Accepted packets by NFLOG, where the kernel can't attach a BPF program to netfilter (before 6.4).

A process that was handed the bound socket needs no privileges to read it. Messages carry sequence numbers,
so the count is right even when the socket's buffer overflowed. Source: nfnetlink_log.h and nfnetlink_log.c
of the kernel.
"""

from __future__ import annotations

import errno
import socket

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.kernel import netlink
from fwtop.kernel.drop_reasons import reached_tc
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import U8, U16, U32, Hook, PacketBatch
from fwtop.observe.messages import DATA_BYTES
from fwtop.observe.older_kernels import DATAGRAM_BYTES
from fwtop.parse.packets import parse_packets

_PACKET = 0x0400  # NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET
_INDEV, _PAYLOAD, _SEQUENCE = 4, 9, 12
_DATAGRAMS_PER_READ = 512
_SEGMENT_BYTES = 1448  # payload of a full TCP segment on Ethernet, with timestamps


class _Logged(Struct, frozen=True):
    """_Logged packets, each from its IP header on, and their total number."""

    data: U8  # (n, DATA_BYTES), zero-padded
    captured: U16
    length: U32  # bytes of the IP packet; longer than any wire packet if GRO merged several
    ifindex: U32
    count: int  # since the last read, including lost ones

    @property
    def segments(self) -> U32:
        """Estimated number of wire packets in each (NFLOG doesn't say)."""
        merged = -(-self.length.astype(np.int64) // _SEGMENT_BYTES)
        return np.where(self.length > 1500, merged, 1).astype(np.uint32)


class NflogReader:
    """Reads a bound socket without blocking."""

    def __init__(self, descriptor: int) -> None:
        self._channel = socket.socket(fileno=descriptor)
        self._next = 0  # the kernel counts from 0 since the group was bound

    def read(self) -> _Logged:
        """Consume what is pending, up to some ten thousand packets."""
        found: list[tuple[int, int, bytes]] = []
        for _ in range(_DATAGRAMS_PER_READ):
            try:
                datagram = self._channel.recv(DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue  # overflow: the sequence numbers show what is missing
            found += parse_datagram(datagram)
        return self._gathered(found)

    def _gathered(self, found: list[tuple[int, int, bytes]]) -> _Logged:
        count = 0
        for sequence, _, _ in found:
            count += ((sequence - self._next) & 0xFFFFFFFF) + 1
            self._next = (sequence + 1) & 0xFFFFFFFF
        rows = [payload[:DATA_BYTES].ljust(DATA_BYTES, b"\0") for _, _, payload in found]
        data = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), DATA_BYTES)
        return _Logged(
            data,
            np.array([min(len(payload), DATA_BYTES) for _, _, payload in found], np.uint16),
            _ip_lengths(data),
            np.array([ifindex for _, ifindex, _ in found], np.uint32),
            count,
        )

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()


def parse_datagram(datagram: bytes) -> list[tuple[int, int, bytes]]:
    """Return (sequence number, incoming interface, packet) of each packet message; others are skipped."""
    found = []
    for kind, body in netlink.messages(datagram):
        if kind != _PACKET:
            continue
        values = dict(netlink.attributes(body, netlink.NETFILTER_HEADER_BYTES))
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


def _ip_lengths(data: U8) -> U32:
    """Read the total length of each row's IP packet from its header (0: neither version)."""
    wide = data.astype(np.uint32)
    version = wide[:, 0] >> 4
    total_v4 = wide[:, 2] << 8 | wide[:, 3]
    total_v6 = (wide[:, 4] << 8 | wide[:, 5]) + 40
    return np.where(version == 4, total_v4, np.where(version == 6, total_v6, 0)).astype(np.uint32)


_ETHERNET_BYTES = 14
_DECAY = 0.9  # of the balance, each interval, where GRO merges packets


class LoggedAccepted:
    """Adds the accepted packets to each interval, of which NFLOG logs exactly every `one_in`th."""

    def __init__(self, descriptor: int, one_in: int) -> None:
        self._reader = NflogReader(descriptor)
        self._one_in = one_in
        self._balance = 0.0
        self._largest = 1.0
        self._variance = 0.0

    def add(self, counters: Counters, time_ns: int, largest: int = 1) -> tuple[PacketBatch, Counters]:
        """Return the logged packets, and the counters with the number of accepted packets filled in.

        `largest` is the greatest number of wire packets in one sampled packet (GRO).
        """
        logged = self._reader.read()
        segments = logged.segments
        merged = float(segments.mean()) if len(segments) else 1.0
        measured = logged.count * self._one_in * merged
        before = sum(drop.packets for drop in counters.drops if drop.before_delivery and reached_tc(drop))
        self._track_merged(logged, largest)
        accepted = self._settle(max(0, counters.arrived_packets - before), measured)
        size = float((logged.length + _ETHERNET_BYTES).mean() / merged) if len(segments) else 0.0
        batch = self._batch(logged, time_ns)
        return batch, replace(
            counters,
            accepted_packets=accepted,
            accepted_bytes=round(accepted * size),
            records_lost=counters.records_lost + logged.count - len(segments),
        )

    def _track_merged(self, logged: _Logged, largest: int) -> None:
        """Track how much the log varies by chance where GRO merges packets.

        Each logged packet then stands for a different number, so the balance decays instead of adding up.
        """
        segments = logged.segments
        self._largest = max(float(largest), float(segments.max(initial=1)), self._largest * _DECAY)
        if self._largest > 1:
            self._balance *= _DECAY
            spread = float(segments.var()) if len(segments) else 0.0
            self._variance = self._variance * _DECAY**2 + logged.count * spread * self._one_in**2

    def _settle(self, expected: int, measured: float) -> int:
        """Return the number of accepted packets, from the ledger's expectation and the log's measurement.

        The log counts in multiples of N. As long as the running difference stays within that, the log
        confirms the expectation; anything beyond is a real difference, which is returned.
        """
        self._balance += expected - measured
        grain = 2 * self._one_in * self._largest
        if abs(self._balance) <= grain + 0.01 * measured + 3 * self._variance**0.5:
            return expected
        accepted = max(0, round(expected - self._balance))
        self._balance -= expected - accepted
        return accepted

    def _batch(self, logged: _Logged, time_ns: int) -> PacketBatch:
        rows = len(logged.captured)
        segments = logged.segments
        return parse_packets(
            logged.data,
            logged.captured,
            link=0,
            length=logged.length // np.maximum(segments, 1) + np.uint32(_ETHERNET_BYTES),
            time_ns=np.full(rows, time_ns, np.int64),
            weight=self._one_in * segments.astype(np.float64),
            hook=int(Hook.ACCEPTED),
            ifindex=logged.ifindex,
        )

    def close(self) -> None:
        """Close the socket."""
        self._reader.close()
