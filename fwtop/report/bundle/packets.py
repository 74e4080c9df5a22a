"""Sample packets as captures, a file an attack."""

from __future__ import annotations

import re

from fwtop.capture.writing import ETHERNET, RAW, pcap_of
from fwtop.model.traffic.session import SamplePacket, SessionRecord


def pcap_files(record: SessionRecord) -> dict[str, bytes]:
    """Return captures by name; packets with and without Ethernet header can't be in one."""
    groups: dict[tuple[str, bool], list[SamplePacket]] = {}
    for packet in record.packets:
        groups.setdefault((_plain(packet.kind), packet.is_ethernet), []).append(packet)
    files = {}
    for (kind, is_ethernet), packets in groups.items():
        rows = [(round(packet.at * 1e9), packet.length, packet.data) for packet in packets]
        name = f"packets/{kind}.pcap" if is_ethernet else f"packets/{kind}-ip.pcap"
        files[name] = pcap_of(rows, ETHERNET if is_ethernet else RAW)
    return files


def _plain(kind: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", kind.lower())[:40] or "attack"
