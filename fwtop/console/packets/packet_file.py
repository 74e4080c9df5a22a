"""The packets that are shown, as a pcap file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fwtop.analysis.packets.recent import PacketList
from fwtop.capture.writing import ETHERNET, RAW, pcap_of
from fwtop.model.traffic.packets import PacketBatch
from fwtop.store.exports import write_export

_BLANK = 14  # bytes of the Ethernet header that stands before packets of interfaces without one


def pcap_bytes(packets: PacketBatch, clock_ns: int) -> bytes:
    """Return packets as a capture; those of interfaces without Ethernet begin with the IP header again."""
    raw = _without_ethernet(packets)
    skipped = _BLANK if raw else 0
    rows = zip(packets.time_ns.tolist(), packets.captured.tolist(), packets.length.tolist(), strict=True)
    return pcap_of(
        (
            (time_ns + clock_ns, length, packets.data[row, skipped:captured].tobytes())
            for row, (time_ns, captured, length) in enumerate(rows)
        ),
        RAW if raw else ETHERNET,
    )


def _without_ethernet(packets: PacketBatch) -> bool:
    """Whether every packet has a blank Ethernet header before its IP header."""
    width = packets.data.shape[1]
    if not len(packets) or width < _BLANK or int(packets.captured.min()) <= _BLANK:
        return False
    blank = ~packets.data[:, : _BLANK - 2].any(axis=1)
    return bool(np.all(blank & (packets.family != 0)))


def write_packets(shown: PacketList, directories: Iterable[Path] | None = None) -> str:
    """Write packets into a new file where reports go, and return its path; raises FwtopError."""
    return write_export(time.time(), "pcap", pcap_bytes(shown.packets, shown.clock_ns), directories)
