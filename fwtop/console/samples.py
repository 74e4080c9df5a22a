"""What stands behind a row of the window: one of its packets decoded, pcap files, the tables of its part.

A session gets some of it as evidence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.analysis.packets.recent import PacketList
from fwtop.analysis.shown import JudgedTraffic, part_traffic
from fwtop.capture.writing import ETHERNET, RAW, pcap_of
from fwtop.dissect.client import LINK_ETHERNET, LINK_IP, Dissection, Dissector
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import Mask, OriginLookup, PacketBatch, Window
from fwtop.model.traffic.session import FULL_TABLE, AttackEvidence, SamplePacket
from fwtop.model.traffic.snapshot import (
    Incident,
    PartTraffic,
    Payload,
    Snapshot,
    Source,
    Sources,
    TrafficPart,
)
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

    def dissect_row(self, shown: PacketList, row: int) -> Dissection:
        """Decode a packet of a list; blocks like `dissect`."""
        if self._dissector is None:
            return Dissection((), "the dissector is not running")
        return self._dissector.dissect(*framed(shown.packets, row))

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


class TrafficParts:
    """Makes the tables of a part once per judged window, however often `of` is asked for them."""

    def __init__(
        self,
        judged: Callable[[], JudgedTraffic | None],
        mark: Callable[[Sources], Sources],
        lookup: OriginLookup,
        top: int,
    ) -> None:
        """`mark` tells who the sources are, and which rules cover them."""
        self._judged = judged
        self._mark = mark
        self._lookup = lookup
        self._top = top
        self._lock = threading.Lock()  # never taken by the observing thread
        self._made: tuple[JudgedTraffic, TrafficPart, PartTraffic | None] | None = None

    def of(self, part: TrafficPart) -> PartTraffic | None:
        """Return the tables of a part; None if the newest window has no packets of it."""
        judged = self._judged()
        if judged is None:
            return None
        with self._lock:
            if self._made is None or self._made[0] is not judged or self._made[1] != part:
                self._made = judged, part, self._make(judged, part)
            return self._made[2]

    def once(self, part: TrafficPart) -> PartTraffic | None:
        """Do the same for one who asks once: nothing is kept, with which the whole window would stay."""
        judged = self._judged()
        return None if judged is None else self._make(judged, part)

    def _make(self, judged: JudgedTraffic, part: TrafficPart) -> PartTraffic | None:
        found = part_traffic(judged, part, self._lookup, self._top)
        if found is None:
            return None
        return replace(found, tables=replace(found.tables, sources=self._mark(found.tables.sources)))


_PAUSE_SECONDS = 3.0  # between two looks: making the tables of an attack takes about 20 ms
_AGAIN_SECONDS = 10.0  # until the same attack is looked at again
_PACKETS = 4  # of one look
_MOST_ATTACKS = 64


class EvidenceSampler:
    """Looks at one attack after the other, first at those not yet seen; costs nothing while there is none."""

    def __init__(
        self, judged: Callable[[], JudgedTraffic | None], part: Callable[[TrafficPart], PartTraffic | None]
    ) -> None:
        """`part` makes the tables of a part of `judged`, the last judged window."""
        self._judged = judged
        self._part = part
        self._looked: dict[int, float] = {}  # by the attack's id
        self._last = float("-inf")

    def take(self, snapshot: Snapshot) -> tuple[AttackEvidence, ...]:
        """Return evidence of at most one attack."""
        at = snapshot.at
        if 0 <= at - self._last < _PAUSE_SECONDS:
            return ()
        due = [attack for attack in snapshot.judgement.harmful if attack.is_on and self._is_due(attack, at)]
        judged = self._judged()
        if not due or judged is None:
            return ()
        attack = min(due, key=lambda item: self._looked.get(item.id, float("-inf")))
        self._last = at
        self._looked = dict(list({**self._looked, attack.id: at}.items())[-_MOST_ATTACKS:])
        part = self._part(TrafficPart(attack=attack.id))
        if part is None:
            return ()
        return (AttackEvidence(at, attack.kind, attack.pps, part, _packets(judged, attack), attack.id),)

    def _is_due(self, attack: Incident, at: float) -> bool:
        since = at - self._looked.get(attack.id, float("-inf"))
        return attack.kind != FULL_TABLE and not 0 <= since < _AGAIN_SECONDS


def _packets(judged: JudgedTraffic, attack: Incident) -> tuple[SamplePacket, ...]:
    finding = judged.findings.get(attack.id)
    if finding is None or not len(finding.rows):
        return ()
    chosen = np.unique(np.linspace(0, len(finding.rows) - 1, _PACKETS).astype(np.intp))
    batch = judged.context.traffic.packets.select(finding.rows[chosen])
    clock_ns = time.time_ns() - time.monotonic_ns()
    return tuple(_packet(batch, row, attack.kind, clock_ns) for row in range(len(batch)))


def _packet(batch: PacketBatch, row: int, kind: str, clock_ns: int) -> SamplePacket:
    data, link = framed(batch, row)
    is_ethernet = link == LINK_ETHERNET
    blank = 14  # bytes of the empty Ethernet header before packets of interfaces without one
    if is_ethernet and not any(data[: blank - 2]) and int(batch.family[row]):
        data, is_ethernet = data[blank:], False
    at = (int(batch.time_ns[row]) + clock_ns) / 1e9
    return SamplePacket(at, kind, max(int(batch.length[row]), len(data)), is_ethernet, data)
