"""What this machine's own TCP services still manage to serve, from /proc/net of this network namespace.

Sources: proc(5); net/ipv4/proc.c. `PassiveOpens` counts finished handshakes (also those by SYN cookies),
`TCPDelivered` segments of ours that were acknowledged: both take a peer that really is there.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from fwtop.collect.procfs import parse_paired, read_text
from fwtop.model.counters import TcpService

_WINDOW_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float  # monotonic seconds
    established: int
    handshakes: int
    acknowledged: int


class TcpServiceMeter:
    """Turns the running sums into rates over the last seconds."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()

    def sample(self) -> TcpService | None:
        """Read the counters; None until there are two readings, or where the kernel has no such counters."""
        reading = parse_service(read_text("/proc/net/snmp"), read_text("/proc/net/netstat"), time.monotonic())
        if reading is None:
            return None
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
    """Pick the sums out of the texts of the two files."""
    tcp = parse_paired(snmp).get("Tcp", {})
    extended = parse_paired(netstat).get("TcpExt", {})
    if "CurrEstab" not in tcp or "TCPDelivered" not in extended:  # before Linux 4.18
        return None
    return _Reading(at, tcp["CurrEstab"], tcp.get("PassiveOpens", 0), extended["TCPDelivered"])
