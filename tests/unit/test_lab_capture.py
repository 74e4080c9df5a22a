"""Captures laid out for the lab: every packet correct, readdressed, in order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from capture_files import CAPTURES
from scapy.layers.inet import ICMP, IP, TCP, UDP, fragment
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

from fwtop.lab import network as net
from fwtop.lab.network import Wire
from fwtop.lab.traffic import capture
from fwtop.lab.traffic.frames import IPV6, NO_PSEUDO, Template, checksum, word_sum
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError

WIRE = Wire(bytes.fromhex("020000000002"), bytes.fromhex("020000000001"))
ETHER = Ether(src="02:00:00:00:00:09", dst="02:00:00:00:00:08")
SHARED = sorted(CAPTURES.glob("*.pcap*"))


def packets() -> list[Packet]:
    """To 203.0.113.9 mostly, some to its neighbour, some from it, and some that can't be sent."""
    to = {"dst": "203.0.113.9"}
    big = IP(src="1.2.3.4", id=7, **to) / UDP(sport=53, dport=999) / Raw(bytes(range(250)) * 12)
    return [
        ETHER / IP(src="1.2.3.4", ttl=61, **to) / UDP(sport=53, dport=4444) / Raw(b"answer"),
        ETHER / Dot1Q(vlan=5) / IP(src="1.2.3.5", **to) / TCP(sport=9, dport=80, flags="S"),
        ETHER / IP(src="1.2.3.6", **to) / ICMP() / Raw(b"ping"),
        *[ETHER / piece for piece in fragment(big, fragsize=1480)],
        ETHER / IP(src="1.2.3.7", dst="203.0.113.10") / UDP(dport=7, chksum=0) / Raw(b"neighbour"),
        ETHER / IP(src="203.0.113.9", dst="1.2.3.4") / UDP(dport=53),
        ETHER / ARP(),
        ETHER / IPv6(src="2a00::1", dst="2001:db8::9", hlim=50) / ICMPv6EchoRequest(data=b"six"),
        ETHER / IPv6(src="2a00::2", dst="2001:db8::9") / UDP(dport=53) / Raw(b"six"),
        ETHER / IP(src="1.2.3.4", proto=47, **to) / Raw(b"\0\0\x08\0"),
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.pcap"
    wrpcap(str(path), packets())
    return path


def test_packets_keep_their_order_and_go_to_the_victim(file: Path) -> None:
    plan = capture.plan_replay(file, WIRE)
    frames = [Ether(item.data) for item in plan.templates]
    sources = [(frame[IP] if IP in frame else frame[IPv6]).src for frame in frames]
    v4 = ["1.2.3.4", "1.2.3.5", "1.2.3.6", "1.2.3.4", "1.2.3.4", "1.2.3.4", "1.2.3.7"]
    assert sources == [*v4, "2a00::1", "2a00::2", "1.2.3.4"]
    targets = [(frame[IP] if IP in frame else frame[IPv6]).dst for frame in frames]
    assert targets[:6] == [net.VICTIM_4] * 6
    assert net.WIDE_4.contains(Prefix.parse(targets[6]))
    assert targets[7:] == [net.VICTIM_6, net.VICTIM_6, net.VICTIM_4]
    assert list(plan.schedule) == list(range(10))
    assert all(net.is_own(item.target) for item in plan.templates)
    assert frames[0][Raw].load == b"answer"
    assert plan.slots[0].ttl == 61


def test_checksums_are_correct_after_readdressing(file: Path) -> None:
    plan = capture.plan_replay(file, WIRE)
    for item in plan.templates:
        frame = Ether(item.data)
        if IP in frame:
            again = frame.copy()
            del again[IP].chksum
            assert Ether(bytes(again))[IP].chksum == frame[IP].chksum
    assert _completed(plan.templates) == 5


def _completed(templates: Iterable[Template]) -> int:
    """Do what the kernel does to each template, and see that scapy agrees."""
    done = 0
    for item in templates:
        if not item.checksum:
            continue
        data = bytearray(item.data)
        source = (
            data[item.l3 + 8 : item.l3 + 24] if item.rewrite & IPV6 else data[item.l3 + 12 : item.l3 + 16]
        )
        total = item.l4_sum + (0 if item.rewrite & NO_PSEUDO else word_sum(bytes(source)))
        data[item.checksum : item.checksum + 2] = checksum(total)
        frame = Ether(bytes(data))
        again = frame.copy()
        for layer in (TCP, UDP, ICMP):
            if layer in again:
                del again[layer].chksum
        if ICMPv6EchoRequest in again:
            del again[ICMPv6EchoRequest].cksum
        assert bytes(again) == bytes(frame), frame.summary()
        done += 1
    return done


def test_fragments_are_sent_without_a_udp_checksum(file: Path) -> None:
    plan = capture.plan_replay(file, WIRE)
    pieces = [Ether(item.data)[IP] for item in plan.templates if item.fragment]
    assert [piece.frag * 8 for piece in pieces] == [0, 1480, 2960]
    assert {piece.id for piece in pieces} == {7}
    assert pieces[0][UDP].chksum == 0  # none: what the reader kept is not the whole datagram
    assert bytes(pieces[0].payload)[8:258] == bytes(range(250))


def test_a_disabled_udp_checksum_stays_disabled(file: Path) -> None:
    plan = capture.plan_replay(file, WIRE)
    neighbour = next(item for item in plan.templates if b"neighbour" in item.data)
    assert neighbour.checksum == 0
    assert Ether(neighbour.data)[UDP].chksum == 0


def test_a_capture_without_ip_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "arp.pcap"
    wrpcap(str(path), [ETHER / ARP()])
    with pytest.raises(FwtopError, match=r"arp\.pcap: it holds no IP packet"):
        capture.plan_replay(path, WIRE)
    with pytest.raises(FwtopError, match=r"missing\.pcap"):
        capture.plan_replay(tmp_path / "missing.pcap", WIRE)


@pytest.mark.parametrize("path", SHARED[:3], ids=lambda path: path.name)
def test_real_captures_can_be_replayed(path: Path) -> None:
    plan = capture.plan_replay(path, WIRE)
    assert len(plan.templates) > 4000
    assert _completed(plan.templates[::25]) > 40
