"""Captures of mirror ports: ERSPAN and VXLAN are decapsulated, floods of GRE are not."""

from __future__ import annotations

import io
import random
import struct

import pytest
from capture_files import pcap
from frames import ethernet, ipv4, ipv6, tcp, udp

from fwtop.capture.reader import read_capture
from fwtop.model.traffic.packets import PacketBatch

SYN = ethernet(ipv4(tcp(4000, 80, window=512), 6, "203.0.113.9", "198.51.100.7", ident=77), 0x0800)
QUERY = ethernet(ipv6(udp(53, 4000, b"answer"), 17), 0x86DD, ((0x8100, 42),))
NOTE = "2 mirrored packets were decapsulated (ERSPAN or VXLAN)"
NEXT_HOP = ("10.9.9.1", "10.9.9.2")


def gre(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">HH", flags, kind) + body


def erspan(version: int, frame: bytes, sub_header: bool = False) -> bytes:
    """GRE with a mirrored frame: type I has no header of its own, II 8 bytes, III 12 or 20."""
    if version == 1:
        return gre(0x88BE, frame)
    sequence = struct.pack(">I", 5)
    if version == 2:
        return gre(0x88BE, sequence + struct.pack(">HHI", 0x1000 | 42, 0x0001, 7) + frame, 0x1000)
    own = struct.pack(">HHIHBB", 0x2000 | 42, 0x0001, 99, 0, 0, int(sub_header)) + bytes(8 * sub_header)
    return gre(0x22EB, sequence + own + frame, 0x1000)


def carried(body: bytes) -> bytes:
    return ethernet(ipv4(body, 47, *NEXT_HOP), 0x0800)


def read(frames: list[bytes]) -> tuple[PacketBatch, list[str]]:
    packets = [(1_700_000_000_000_000_000 + at, frame, len(frame)) for at, frame in enumerate(frames)]
    capture = read_capture(io.BytesIO(pcap(packets, nano=True)), "mirror.pcap")
    batch = PacketBatch.concat(list(capture.batches()))
    return batch, capture.notes


@pytest.mark.parametrize(("version", "sub_header"), [(1, False), (2, False), (3, False), (3, True)])
def test_erspan_is_decapsulated(version: int, sub_header: bool) -> None:
    plain = ethernet(ipv4(udp(9, 9, b"own"), 17), 0x0800)
    batch, notes = read([plain, *(carried(erspan(version, frame, sub_header)) for frame in (SYN, QUERY))])
    direct, _ = read([plain, SYN, QUERY])
    for name in ("protocol", "src_lo", "src_hi", "sport", "dport", "tcp_window", "ip_id", "vlan", "length"):
        assert getattr(batch, name).tolist() == getattr(direct, name).tolist(), name
    width = direct.data.shape[1]
    assert (batch.data[:, :width] == direct.data).all()
    assert batch.captured.tolist() == direct.captured.tolist()
    assert batch.time_ns.tolist() == direct.time_ns.tolist()
    assert notes == [NOTE]


def vxlan(frame: bytes, source: str = "10.9.9.1", flags: int = 0x08000000) -> bytes:
    data = struct.pack(">II", flags, 4711 << 8) + frame
    return ethernet(ipv4(udp(50_000, 4789, data), 17, source, "10.9.9.2"), 0x0800)


def test_vxlan_is_decapsulated() -> None:
    batch, notes = read([vxlan(SYN), vxlan(QUERY), vxlan(SYN, flags=0x0C000000), vxlan(b"not a frame" * 9)])
    assert (batch.protocol.tolist(), notes) == ([6, 17, 17, 17], [NOTE])
    assert (batch.dport.tolist(), batch.tcp_window.tolist()) == ([80, 4000, 4789, 4789], [512, 0, 0, 0])
    assert batch.length.tolist()[:2] == [len(SYN), len(QUERY)]


def test_vxlan_from_many_sources_is_not_decapsulated() -> None:
    batch, notes = read([vxlan(SYN, f"203.0.113.{number}") for number in range(100)])
    assert (set(batch.dport.tolist()), notes) == ({4789}, [])


INNER = ipv4(udp(1, 2, b"flood" * 20), 17)
TUNNELS = [
    gre(0x0800, INNER),  # Mirai's greip
    gre(0x6558, ethernet(INNER, 0x0800)),  # and greeth
    gre(0x0800, struct.pack(">I", 5) + INNER, 0x1000),
    gre(0x88BE, b"\0" * 60),  # ERSPAN I would have an Ethernet frame
    gre(0x88BE, bytes(4) + b"\x70" + bytes(60), 0x1000),  # no version of it
    erspan(2, SYN[:20]),  # cut short
    b"",
]


@pytest.mark.parametrize("body", TUNNELS)
def test_other_gre_is_not_decapsulated(body: bytes) -> None:
    batch, notes = read([carried(body)])
    assert (batch.protocol.tolist(), notes) == ([47], [])


def test_random_gre_never_raises() -> None:
    chance = random.Random(8)
    bodies = [erspan(chance.choice((1, 2, 3)), SYN, chance.random() < 0.5) for _ in range(400)]
    frames = []
    for body in bodies:
        frame = bytearray(carried(body))
        for _ in range(3):
            frame[chance.randrange(14, len(frame))] = chance.choice((0, 1, 47, 69, 255))
        frames.append(bytes(frame[: chance.randrange(14, len(frame))] if chance.random() < 0.3 else frame))
    batch, _ = read(frames)
    assert len(batch) == 400
