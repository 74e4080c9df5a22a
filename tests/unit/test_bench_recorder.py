from __future__ import annotations

import struct
from pathlib import Path

from fwtop.bench.recorder import capture_records, parse

UDP = struct.pack(">HHHH", 53, 4444, 11, 0) + b"abc"


def _ipv4(protocol: int, body: bytes, fragment: int = 0) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 1, fragment, 60, protocol, 0)
    return bytes(12) + b"\x08\x00" + head + bytes([192, 0, 2, 7]) + bytes([198, 51, 100, 1]) + body


def test_the_slow_parser_reads_headers() -> None:
    packet = parse(_ipv4(17, UDP) + b"padding")
    assert packet is not None
    assert (packet.source, packet.sport, packet.dport, packet.payload) == ("192.0.2.7", 53, 4444, b"abc")
    later = parse(_ipv4(17, b"middle of it", fragment=100))
    assert later is not None
    assert later.later_fragment
    assert later.sport is None


def test_the_slow_parser_skips_vlan_tags_and_ipv6_extensions() -> None:
    source = bytes.fromhex("20010db8000000000000000000000009")
    hop = bytes([17, 0]) + bytes(6)
    ipv6 = struct.pack(">IHBB", 6 << 28, len(hop) + len(UDP), 0, 60) + source + bytes(16) + hop + UDP
    packet = parse(bytes(12) + b"\x81\x00\x00\x05\x86\xdd" + ipv6)
    assert packet is not None
    assert (packet.source, packet.sport, packet.payload) == ("2001:db8::9", 53, b"abc")


def test_the_slow_parser_finds_ip_behind_pppoe_mpls_and_cooked_headers() -> None:
    whole = _ipv4(17, UDP)
    packet = whole[14:]
    session = bytes(12) + b"\x88\x64\x11\0\0\1\0\0\0\x21" + packet
    labels = bytes(12) + b"\x88\x47\0\1\0\x40\0\1\1\x40" + packet
    cooked = b"\x08\0" + bytes(18) + packet
    found = [parse(session), parse(labels), parse(cooked, 276)]
    assert found == [parse(whole)] * 3 != [None] * 3


def test_the_slow_parser_rejects_truncated_packets() -> None:
    assert parse(b"") is None
    assert parse(bytes(12) + b"\x08\x00\x45") is None
    assert parse(bytes(12) + b"\x08\x06" + bytes(30)) is None


def test_the_slow_reader_reads_pcap_and_pcapng(tmp_path: Path) -> None:
    frame_bytes = _ipv4(17, UDP)
    size = len(frame_bytes)
    classic = tmp_path / "a.pcap"
    classic.write_bytes(
        struct.pack(">IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
        + struct.pack(">IIII", 1, 2, size, size + 9)
        + frame_bytes
    )
    assert list(capture_records(classic)) == [(frame_bytes, size + 9, 1)]
    padded = frame_bytes + bytes(-size % 4)
    block = struct.pack("<IIIII", 0, 0, 0, size, size) + padded
    blocks = [
        (0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        (1, struct.pack("<HHI", 1, 0, 0)),
        (6, block),
    ]
    modern = tmp_path / "a.pcapng"
    modern.write_bytes(
        b"".join(
            struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
            for kind, body in blocks
        )
    )
    assert list(capture_records(modern)) == [(frame_bytes, size, 1)]
