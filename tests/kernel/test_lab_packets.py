"""The lab's packets on the wire: correct checksums, random fields, complete fragments."""

from __future__ import annotations

import subprocess

import pytest
from lab_bench import inline
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import Dot1Q
from scapy.packet import Packet
from scapy.utils import rdpcap

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> list[Packet]:
    """Frames captured at a victim, of one vector of each sort."""
    text = "".join(
        f'[[vector]]\nkind = "udp_flood"\n{vector}\n'
        for vector in (
            'name = "syn"\nprotocol = "tcp"\nflags = "SYN"\noptions = true\ndport = 80\nttl = "random"',
            'name = "ack"\nprotocol = "tcp"\nflags = "ACK"\npayload = { random = 24 }\ndport = "1-1000"',
            'name = "six"\nprotocol = "udp"\nfamily = 6\ndport = 53\ntarget = "network"\n'
            'payload = [{ text = "abc" }, { random = 16 }]',
            'name = "name"\nprotocol = "udp"\ndport = 53\n'
            'payload = [{ make = "dns_query", name = "x.example" }, { dns_label = 16 }]',
            'name = "carpet"\nprotocol = "udp"\ntarget = "network"\ndport = [7, 8]\npayload = { zeros = 30 }',
            'name = "ping"\nprotocol = "icmp"\npayload = { random = 56 }',
            'name = "ping6"\nprotocol = "icmpv6"\nfamily = 6\nicmp = [128, 0]\npayload = { zeros = 9 }',
            'name = "vlan"\nprotocol = "udp"\nvlan = [7, 8]\npayload = { text = "tagged" }\ndport = 9',
            'name = "big"\nprotocol = "udp"\npayload = [{ random = 800 }, { zeros = 3000 }]\ndport = 9',
            'name = "big6"\nfamily = 6\nprotocol = "udp"\npayload = { zeros = 3000 }\ndport = 9',
        )
    )
    file = tmp_path_factory.mktemp("lab") / "all.pcap"
    with inline(text) as lab:
        lab.pause_clients()
        dump = subprocess.Popen(
            ["ip", "netns", "exec", lab.victim, "tcpdump", "-i", "eth0", "-Q", "in", "-c", "600", "-w", file],
            stderr=subprocess.PIPE,
        )
        assert dump.stderr is not None
        assert b"listening" in dump.stderr.readline()
        lab.start_flood(4000)
        dump.wait(timeout=60)
        dump.stderr.close()
        lab.stop()
        own = set(lab.legitimate.all)
    frames = [frame for frame in rdpcap(str(file)) if IP in frame or IPv6 in frame]
    return [frame for frame in frames if frame[IP if IP in frame else IPv6].src not in own]


def test_copies_have_correct_checksums(captured: list[Packet]) -> None:
    assert len(captured) > 300
    seen = set()
    for frame in captured:
        again = frame.copy()
        for layer in (IP, TCP, UDP):
            if layer in again:
                del again[layer].chksum
        if "ICMP" in again:
            del again["ICMP"].chksum
        if "ICMPv6EchoRequest" in again:
            del again["ICMPv6EchoRequest"].cksum
        piece = IPv6ExtHdrFragment in frame or (IP in frame and (frame[IP].flags.MF or frame[IP].frag))
        whole = not piece
        if whole:
            assert bytes(again) == bytes(frame), frame.summary()
        seen.add((frame.lastlayer().name, whole, Dot1Q in frame))
    assert len(seen) >= 5


def test_copies_differ_where_they_should(captured: list[Packet]) -> None:
    syns = [frame for frame in captured if TCP in frame and frame[TCP].flags == "S"]
    assert len({frame[IP].src for frame in syns}) > 0.9 * len(syns) > 20
    assert len({frame[TCP].seq for frame in syns}) == len(syns)
    assert len({frame[IP].ttl for frame in syns}) > 10
    udp = [frame for frame in captured if UDP in frame and IP in frame]
    carpet = {frame[IP].dst for frame in udp if frame[UDP].dport in (7, 8)}
    assert len(carpet) > 20
    assert all(address.startswith("198.18.") for address in carpet)
    six = [frame for frame in captured if IPv6 in frame and UDP in frame and frame[UDP].dport == 53]
    assert len({frame[IPv6].dst for frame in six}) > 0.9 * len(six) > 20


def test_fragments_of_a_copy_belong_together(captured: list[Packet]) -> None:
    pieces: dict[tuple[str, int], list[int]] = {}
    for frame in captured:
        if IP in frame and (frame[IP].flags.MF or frame[IP].frag):
            pieces.setdefault((frame[IP].src, frame[IP].id), []).append(frame[IP].frag * 8)
    complete = [offsets for offsets in pieces.values() if offsets == [0, 1480, 2960]]
    assert len(complete) >= len(pieces) - 2 > 5  # the capture may begin or end within one
    six: dict[tuple[str, int], int] = {}
    for frame in captured:
        if IPv6ExtHdrFragment in frame:
            key = (frame[IPv6].src, frame[IPv6ExtHdrFragment].id)
            six[key] = six.get(key, 0) + 1
    assert sum(count == 3 for count in six.values()) >= len(six) - 2 > 5
