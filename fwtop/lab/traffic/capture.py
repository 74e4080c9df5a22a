"""Replay of a capture into the lab: its packets in order, readdressed to the victim.

Sources are kept. The most frequent destination becomes the victim's address, others become addresses of the
victim's network; packets that the recorded host sent are left out. The first 640 bytes of a packet are sent,
padded with zeros to its length, with correct checksums (fragmented IPv4 UDP datagrams are sent without one).
Captures are read by fwtop's own reader: pcap, pcapng, gzip.
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import numpy as np
from msgspec import Struct

from fwtop.capture.reader import read_capture
from fwtop.lab import network as net
from fwtop.lab.network import Wire
from fwtop.lab.scenario import Pool, Scenario, Vector
from fwtop.lab.traffic.frames import (
    FRAGMENT_HEADER,
    IPV6,
    MIN_FRAME,
    MTU,
    NO_PSEUDO,
    SHOWN,
    Template,
    checksum,
    word_sum,
)
from fwtop.lab.traffic.plan import Phase, Plan, packet_rows, source_rows
from fwtop.lab.traffic.pools import Slot
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import FLAG_MALFORMED, FLAG_OUTBOUND, PacketBatch
from fwtop.model.traffic.protocols import ICMP, ICMPV6, TCP, UDP

MAX_PACKETS = 16_384  # the kernel's table holds 1.6 KB for each
_MIN_PPS, _MAX_PPS = 100, 300_000
_CHECKSUM_AT = {TCP: 16, UDP: 6, ICMP: 2, ICMPV6: 2}
_EXTENSIONS = (0, 43, FRAGMENT_HEADER, 60)
_NAMES = {TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMPV6: "icmpv6"}


class _Packet(Struct, frozen=True):
    """One IP packet of the capture; `data` starts at the IP header and has the packet's full length."""

    data: bytes
    family: int
    source: Prefix
    target: Prefix
    ttl: int

    @property
    def upper(self) -> tuple[int, int, int | None]:
        """Transport protocol, offset of its header, and fragment offset (None if not fragmented)."""
        if self.family == 4:
            word = int.from_bytes(self.data[6:8], "big")
            fragment = (word & 0x1FFF) * 8 if word & 0x3FFF else None
            return self.data[9], (self.data[0] & 15) * 4, fragment
        protocol, at, fragment = self.data[6], 40, None
        while protocol in _EXTENSIONS and at + 8 <= len(self.data):
            if protocol == FRAGMENT_HEADER:
                word = int.from_bytes(self.data[at + 2 : at + 4], "big")
                fragment = word & 0xFFF8 if word & 0xFFF9 else None
            size = 8 if protocol == FRAGMENT_HEADER else 8 + 8 * self.data[at + 1]
            protocol, at = self.data[at], at + size
        return protocol, at, fragment


def plan_replay(path: Path, wire: Wire) -> Plan:
    """Build the tables that replay a capture; raises FwtopError if it holds nothing to send."""
    capture = read_capture(path)
    packets, pps = _read(list(capture.batches()))
    shown = safe_text(path.name)
    if not packets:
        raise FwtopError(f"{shown}: it holds no IP packet that could be replayed; nothing was sent")
    places = _places(packets)
    made, owners, spans = [], [], []
    table: list[Slot] = []
    numbers: dict[tuple[Prefix, int], int] = {}
    protocols: dict[tuple[int, int], int] = {}
    for packet in packets:
        made.append(_template(packet, places[packet.target], wire))
        owners.append(protocols.setdefault((packet.upper[0], packet.family), len(protocols)))
        key = (packet.source, packet.ttl)
        if key not in numbers:
            numbers[key] = len(table)
            table.append(Slot(*key))
        spans.append((numbers[key], 1))
    pool = Pool(forged=False)
    vectors = tuple(
        Vector(number, _NAMES.get(number, str(number)), family=family, source=pool)
        for number, family in protocols
    )
    scenario = Scenario(f"replay of {shown}", f"capture {shown}", pps=pps, in_order=True, vectors=vectors)
    order = np.arange(len(made), dtype=np.uint32)
    phases = (Phase(0.0, 0, len(made)),)
    return Plan(
        scenario, tuple(made), tuple(owners), tuple(table), packet_rows(made, spans), source_rows(table, {}),
        order, phases,
    )  # fmt: skip


def _read(batches: list[PacketBatch]) -> tuple[list[_Packet], int]:
    """Return the first packets that can be sent, and the capture's mean rate in packets per second."""
    if not batches:
        return [], _MIN_PPS
    targets = Counter[Prefix]()
    packets: list[_Packet] = []
    for batch in batches:
        usable = (batch.family > 0) & (batch.flags & (FLAG_MALFORMED | FLAG_OUTBOUND) == 0)
        for row in np.flatnonzero(usable & (batch.ip_length >= 20) & (batch.ip_length <= MTU)):
            packet = _packet(batch, int(row))
            if packet is not None and len(packets) < 2 * MAX_PACKETS:
                packets.append(packet)
                targets[packet.target] += 1
    if not packets:
        return [], _MIN_PPS
    victim = targets.most_common(1)[0][0]
    seconds = max(1e-3, float(batches[-1].time_ns[-1] - batches[0].time_ns[0]) / 1e9)
    total = sum(len(batch) for batch in batches)
    kept = [packet for packet in packets if packet.source != victim][:MAX_PACKETS]
    return kept, min(_MAX_PPS, max(_MIN_PPS, round(total / seconds)))


def _packet(batch: PacketBatch, row: int) -> _Packet | None:
    data = batch.data[row, : batch.captured[row]].tobytes()
    family, length = int(batch.family[row]), int(batch.ip_length[row])
    start = next((at for at in (14, 0, 18, 22, 26, 30) if _is_header(data[at:], family, length)), None)
    if start is None:
        return None
    source, target = (
        Prefix.of_columns(family, int(hi[row]), int(lo[row]))
        for hi, lo in ((batch.src_hi, batch.src_lo), (batch.dst_hi, batch.dst_lo))
    )
    whole = data[start : start + length].ljust(length, b"\0")
    return _Packet(whole, family, source, target, int(batch.ttl[row]))


def _is_header(data: bytes, family: int, length: int) -> bool:
    if len(data) < (20 if family == 4 else 40) or data[0] >> 4 != family:
        return False
    at, more = (2, 0) if family == 4 else (4, 40)
    return int(struct.unpack_from("!H", data, at)[0]) + more == length


def _places(packets: list[_Packet]) -> dict[Prefix, Prefix]:
    """Map each destination of the capture to one of the victim's addresses, the most frequent first."""
    ranked = Counter(packet.target for packet in packets).most_common()
    places: dict[Prefix, Prefix] = {}
    for number, (target, _) in enumerate(ranked):
        first = next(iter(places), None)
        alone = first is None or all(known.family != target.family for known in places)
        wide = net.victim_prefix(target.family, "network")
        offset = number % (1 << min(16, wide.bits - wide.length))
        near = Prefix(target.family, wide.value + offset, wide.bits)
        places[target] = net.victim_prefix(target.family, "address") if alone else near
    return places


def _template(packet: _Packet, target: Prefix, wire: Wire) -> Template:
    protocol, at, fragment = packet.upper
    size = 4 if packet.family == 4 else 16
    where = 16 if packet.family == 4 else 24
    new = target.value.to_bytes(size, "big")
    data = bytearray(packet.data)
    data[where : where + size] = new
    field = _checksum_field(bytes(data), protocol, at, fragment)
    if field and fragment is not None and protocol == UDP and packet.family == 4:
        data[field : field + 2] = b"\0\0"
    if packet.family == 4:
        data[10:12] = b"\0\0"
        data[10:12] = checksum(word_sum(bytes(data[:at])))
    kept = bytearray(data[:at])
    kept[8:9], kept[10:16] = b"\0", bytes(6)
    link = wire.victim + wire.attacker + (b"\x08\x00" if packet.family == 4 else b"\x86\xdd")
    complete = bool(field) and fragment is None
    if complete:
        data[field : field + 2] = b"\0\0"
    pseudo = b"" if protocol == ICMP else struct.pack("!HH", protocol, len(data) - at) + new
    shown = bytes(data[at + _header(protocol, bytes(data[at:])) :]) if not fragment else bytes(data[at:])
    return Template(
        data=(link + bytes(data)).ljust(MIN_FRAME, b"\0"),
        l3=len(link),
        l4=len(link) + at,
        checksum=len(link) + field if complete else 0,
        rewrite=(IPV6 if packet.family == 6 else 0) | (NO_PSEUDO if protocol == ICMP else 0),
        ip_sum=word_sum(bytes(kept)) if packet.family == 4 else 0,
        l4_sum=word_sum(bytes(data[at:])) + word_sum(pseudo),
        id_at=0,
        sport=_port(protocol, fragment, data, at),
        dport=_port(protocol, fragment, data, at + 2),
        random_at=0,
        random_size=0,
        target=target,
        shown=shown[:SHOWN],
        shown_at=0,
        fragment=fragment is not None,
        later=bool(fragment),
    )


def _checksum_field(data: bytes, protocol: int, at: int, fragment: int | None) -> int:
    """Return the offset of the transport checksum; 0 if there is none or UDP's checksum is disabled."""
    if protocol not in _CHECKSUM_AT or fragment:
        return 0
    field = at + _CHECKSUM_AT[protocol]
    present = data[field : field + 2]
    return 0 if len(present) < 2 or (protocol == UDP and present == b"\0\0") else field


def _header(protocol: int, data: bytes) -> int:
    if protocol == TCP:
        return (data[12] >> 4) * 4 if len(data) > 12 else 20
    return 8 if protocol in (UDP, ICMP, ICMPV6) else 0


def _port(protocol: int, fragment: int | None, data: bytearray, at: int) -> tuple[int, int]:
    if protocol not in (TCP, UDP) or fragment:
        return 0, 1
    return int.from_bytes(data[at : at + 2], "big"), 1
