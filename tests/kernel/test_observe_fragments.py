"""Fragments in the ledger: complete datagrams, waiting fragments, and fragments dropped by a rule."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.kernel.conftest import NetnsPair
from tests.kernel.observing import named, observing, send
from tests.kernel.wire import checksummed, mac, meet, send_frames

pytestmark = pytest.mark.kernel


def test_all_fragments_are_accounted_for(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    with observing(netns_pair.victim) as observer:
        send(netns_pair, 4242, 10, "x" * 4000)
        answer = observer.ask("wait 30")
    assert answer["protocols"]["udp"][0] == 30
    assert 30 <= answer["accepted"] <= answer["arrived"]  # besides, there is IPv6 talking to itself
    assert named(answer) == {"socket/NO_SOCKET/after": 10}


def test_waiting_fragments_are_reported(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    frames = []
    for number in range(40):
        header = struct.pack(
            "!BBHHHBBH4s4s",
            *(0x45, 0, 36, 1000 + number, 0x2000, 64, 17, 0),  # more fragments follow, but never do
            *(bytes((10, 77, 0, 2)), bytes((10, 77, 0, 1))),
        )
        frames.append(mac(netns_pair.victim) + bytes(6) + b"\x08\x00" + checksummed(header, 10))
    payload = struct.pack("!HHHH", 1234, 4242, 100, 0) + b"waiting!"
    with observing(netns_pair.victim) as observer:
        send_frames(netns_pair.attacker, *(frame + payload for frame in frames))
        first, second = observer.ask("wait 40"), observer.ask("poll")
    waiting = [answer["drops"].get("ip/FRAGMENTS_WAITING/before", 0) for answer in (first, second)]
    assert sum(waiting) == 40


def test_all_fragments_of_a_packet_dropped_by_a_rule_are_counted(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    victim = netns_pair.victim
    for tool in ("iptables", "ip6tables"):  # the state match has connection tracking put them together
        victim.run(tool, "-A", "INPUT", "-p", "udp", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
    with observing(victim) as observer:
        for address in (victim.ipv4, victim.ipv6):
            send(netns_pair, 4242, 10, "x" * 4000, address)
        answer = observer.ask("wait 60")
    assert answer["protocols"]["udp"][0] == 60
    assert answer["drops"]["netfilter/NETFILTER_DROP/before"] == 60


def test_fragments_held_by_connection_tracking_are_reported(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    victim = netns_pair.victim
    victim.run("ip6tables", "-A", "INPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
    frames = []
    for number in range(40):
        fragment = struct.pack("!BBHI", 17, 0, 1, 1000 + number)  # the first, more to follow
        datagram = struct.pack("!HHHH", 1234, 4242, 100, 0) + b"waiting!"
        header = struct.pack("!IHBB", 6 << 28, len(fragment + datagram), 44, 64)
        ends = [socket.inet_pton(socket.AF_INET6, host.ipv6) for host in (netns_pair.attacker, victim)]
        frames.append(mac(victim) + bytes(6) + b"\x86\xdd" + header + b"".join(ends))
        frames[-1] += fragment + datagram
    with observing(victim) as observer:
        send_frames(netns_pair.attacker, *frames)
        answers = [observer.ask("wait 40"), observer.ask("poll")]
    waiting = [answer["drops"].get("conntrack/FRAGMENTS_WAITING/before", 0) for answer in answers]
    assert sum(waiting) == 40
