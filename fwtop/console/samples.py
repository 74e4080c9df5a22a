"""Sampled packets: one behind a row of the screen decoded by the dissector, those shown as a pcap file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fwtop.analysis.packets.recent import PacketList
from fwtop.capture.pcap import ETHERNET, RAW, pcap_of
from fwtop.dissect.client import LINK_ETHERNET, LINK_IP, Dissection, Dissector
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import Mask, PacketBatch
from fwtop.model.traffic.snapshot import Payload, Source
from fwtop.model.traffic.window import OriginLookup, Window
from fwtop.store.directory import write_export

_CANDIDATES = 4096  # packets searched for a payload, newest first
_TAGS = {0x8100, 0x88A8, 0x9100, 0x8864, 0x8847}  # VLAN, QinQ, PPPoE, MPLS: the batch has the inner type


class SamplePackets:
    """Finds one packet of the latest window for a row, and has it decoded."""

    def __init__(
        self, latest: Callable[[], Window | None], lookup: OriginLookup, dissector: Dissector | None
    ) -> None:
        """`latest` returns the window to search; without a dissector the answer only says so."""
        self._latest = latest
        self._lookup = lookup
        self._dissector = dissector

    def dissect(self, row: Source | Payload) -> Dissection:
        """Decode a packet of this row; blocks for a few seconds at most, so call it from a thread."""
        if self._dissector is None:
            return Dissection((), "the dissector is not running")
        window = self._latest()
        found = None if window is None else find_sample(window, row, self._lookup)
        if found is None:
            return Dissection((), "no sample of it in the current window")
        return self._dissector.dissect(*found)

    def dissect_row(self, packets: PacketBatch, row: int) -> Dissection:
        """Decode a packet of a batch; blocks like `dissect`."""
        if self._dissector is None:
            return Dissection((), "the dissector is not running")
        return self._dissector.dissect(*framed(packets, row))

    def close(self) -> None:
        """End the dissector."""
        if self._dissector is not None:
            self._dissector.close()


def find_sample(window: Window, row: Source | Payload, lookup: OriginLookup) -> tuple[bytes, int] | None:
    """Return the bytes and link type of the newest packet of this row that was captured most completely."""
    batch = window.arrived
    rows = (
        _of_payload(batch, row)
        if isinstance(row, Payload)
        else np.flatnonzero(_of_source(batch, row, lookup))
    )
    if not len(rows):
        return None
    newest = rows[::-1]
    best = int(newest[np.argmax(batch.captured[newest])])
    return framed(batch, best)


def _of_source(batch: PacketBatch, row: Source, lookup: OriginLookup) -> Mask:
    if row.prefix is not None:
        return _within(batch, row.prefix)
    origins = lookup.columns(batch.family, batch.src_hi, batch.src_lo)
    if row.asn is not None:
        return np.equal(origins.asn, row.asn)
    return np.equal(origins.country, int.from_bytes(row.key.encode()[:2], "big"))


def _within(batch: PacketBatch, prefix: Prefix) -> Mask:
    shift = prefix.bits - prefix.length
    wanted = prefix.value >> shift << shift
    keep = (1 << prefix.bits) - (1 << shift)
    low_mask, high_mask = np.uint64(keep & (2**64 - 1)), np.uint64(keep >> 64)
    inside: Mask = (
        (batch.family == prefix.family)
        & (batch.src_lo & low_mask == np.uint64(wanted & (2**64 - 1)))
        & (batch.src_hi & high_mask == np.uint64(wanted >> 64))
    )
    return inside


def _of_payload(batch: PacketBatch, row: Payload) -> NDArray[np.intp]:
    rows = np.flatnonzero(batch.payload_length > 0)[-_CANDIDATES:]
    matching = []
    for index in rows:
        start, end = int(batch.payload_offset[index]), int(batch.captured[index])
        payload = batch.data[index, start:end].tobytes()
        at = row.offset or 0
        if row.data in payload if row.offset is None else payload[at : at + len(row.data)] == row.data:
            matching.append(index)
    return np.array(matching, np.intp)


def framed(batch: PacketBatch, index: int) -> tuple[bytes, int]:
    """Return a packet's bytes and link type; readers of captures put an Ethernet header before bare IP."""
    data = batch.data[index, : int(batch.captured[index])].tobytes()
    family = int(batch.family[index])
    bare = family != 0 and data[:1] and data[0] >> 4 == family
    ethertype = int.from_bytes(data[12:14], "big")
    is_ethernet = ethertype in {int(batch.ethertype[index]), *_TAGS}
    return data, LINK_IP if bare and not is_ethernet else LINK_ETHERNET


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
