"""A sample packet is found for every row of sources and payloads, whatever the link type."""

from __future__ import annotations

import io
import socket
import struct

import pytest
from capture_files import pcap

from fwtop.console.playback.capture import CaptureResult, observe_capture
from fwtop.console.samples import SamplePackets, find_sample
from fwtop.dissect.client import LINK_ETHERNET, Dissection
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import NoOrigin
from fwtop.model.traffic.snapshot import Payload, Share, Source

SHARE = Share(1, 1, 1.0, 0.1, 0.1, 0.1)
MAC = bytes.fromhex("020000000001020000000002")
LINKS = {
    "ethernet": (1, MAC + b"\x08\x00"),
    "vlan": (1, MAC + b"\x81\x00\x00\x05\x08\x00"),
    "raw": (101, b""),
    "cooked": (113, bytes(14) + b"\x08\x00"),
}


def packet(source: str, payload: bytes) -> bytes:
    size = 28 + len(payload)
    addresses = socket.inet_aton(source) + socket.inet_aton("192.0.2.1")
    header = struct.pack("!BBHHHBBH", 0x45, 0, size, 7, 0, 64, 17, 0) + addresses
    return header + struct.pack("!HHHH", 5000, 53, 8 + len(payload), 0) + payload


def captured(link: str) -> CaptureResult:
    kind, frame = LINKS[link]
    packets = [
        frame + packet(f"203.0.113.{number % 5}", b"payload %d" % (number % 5)) for number in range(50)
    ]
    file = pcap([(number * 10**6, data, len(data)) for number, data in enumerate(packets)], link_type=kind)
    return observe_capture(io.BytesIO(file), "x", top=5, lookup=NoOrigin())


@pytest.mark.parametrize("link", LINKS)
def test_a_sample_matches_its_row(link: str) -> None:
    window = captured(link).whole.window
    ethernet = LINKS[link][1] if link in ("ethernet", "vlan") else bytes(12) + b"\x08\x00"
    wanted = (ethernet + packet("203.0.113.3", b"payload 3"), LINK_ETHERNET)
    for row in (
        Source("203.0.113.3", SHARE, 0.0, prefix=Prefix.parse("203.0.113.3")),
        Payload(b"load 3", "", 3, None, SHARE, 0.0),
        Payload(b"ad 3", "", None, None, SHARE, 0.0),
    ):
        assert find_sample(window, row, NoOrigin()) == wanted
    network = Source("203.0.113.0/24", SHARE, 0.0, prefix=Prefix.parse("203.0.113.0/24"))
    assert find_sample(window, network, NoOrigin()) is not None
    for row in (
        Source("198.51.100.0/24", SHARE, 0.0, prefix=Prefix.parse("198.51.100.0/24")),
        Source("AS1", SHARE, 0.0, asn=1),
        Payload(b"load 3", "", 0, None, SHARE, 0.0),
    ):
        assert find_sample(window, row, NoOrigin()) is None


def test_what_is_missing_is_told_in_a_line() -> None:
    row = Payload(b"x", "", None, None, SHARE, 0.0)
    assert SamplePackets(lambda: None, NoOrigin(), None).dissect(row) == Dissection(
        (), "the dissector is not running"
    )
