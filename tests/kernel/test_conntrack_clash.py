"""Packets of one connection that wait in a queue before it is tracked: of TCP all but one are lost."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETLINK_NETFILTER, attribute, attributes, netfilter_header
from tests.kernel.conftest import Host, NetnsPair
from tests.kernel.observing import observing
from tests.kernel.wire import inside
from tests.kernel.xdp_frames import tcp, udp

pytestmark = pytest.mark.kernel
PORT, NUMBER, COUNT = 5000, 7, 4
TCP, UDP, SYN = 6, 17, 2
# linux/netfilter/nfnetlink_queue.h
_CONFIG, _VERDICT = 3 << 8 | 2, 3 << 8 | 1
_BIND, _COPY_HEADERS, _ACCEPT = 1, 1, 1


class Queue:
    """An NFQUEUE of a host's: it holds packets until they are let go."""

    def __init__(self, host: Host) -> None:
        with inside(host.netns):
            self._channel = netlink.open_socket(NETLINK_NETFILTER)
        head = netfilter_header(0, NUMBER)
        netlink.send(self._channel, _CONFIG, head + attribute(1, struct.pack(">BxH", _BIND, 2)))
        netlink.send(self._channel, _CONFIG, head + attribute(2, struct.pack(">IB", 0xFFFF, _COPY_HEADERS)))

    def hold(self, count: int) -> list[int]:
        """Wait for packets, and return their numbers."""
        found: list[int] = []
        while len(found) < count:
            for _, body in netlink.messages(self._channel.recv(1 << 16)):
                header = dict(attributes(body, 4)).get(1)
                found += [int.from_bytes(header[:4], "big")] if header else []
        return found

    def let_go(self, numbers: list[int]) -> None:
        for number in numbers:
            verdict = attribute(2, struct.pack(">II", _ACCEPT, number))
            self._channel.send(netlink.message(_VERDICT, 1, netfilter_header(0, NUMBER) + verdict))

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def queue(netns_pair: NetnsPair) -> Iterator[Queue]:
    victim = netns_pair.victim
    made = Queue(victim)
    new = ("-m", "conntrack", "--ctstate", "NEW", "-j", "NFQUEUE", "--queue-num", str(NUMBER))
    victim.run("iptables", "-A", "INPUT", *new)
    victim.run("sysctl", "-qw", "net.netfilter.nf_conntrack_checksum=0")  # the packets below have none
    yield made
    made.close()


def send(pair: NetnsPair, protocol: int) -> None:
    """Send packets that all open the same connection."""
    packet = tcp(6000, PORT, SYN) if protocol == TCP else udp(6000, PORT, b"x")
    with inside(pair.attacker.netns), socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol) as raw:
        for _ in range(COUNT):
            raw.sendto(packet, (pair.victim.ipv4, 0))


@pytest.mark.parametrize(
    ("protocol", "lost"),
    [(TCP, COUNT - 1), (UDP, 0)],
    ids=["TCP's are dropped", "UDP's are taken for the same connection"],
)
def test_what_clashes_is_told_from_what_finds_the_table_full(
    netns_pair: NetnsPair, queue: Queue, protocol: int, lost: int
) -> None:
    with observing(netns_pair.victim) as observer:
        observer.ask("poll")
        send(netns_pair, protocol)
        queue.let_go(queue.hold(COUNT))
        answer = observer.ask("watch 1")
    drops = answer["drops"]
    assert {
        name: count for name, count in drops.items() if name.startswith(("conntrack/", "netfilter/"))
    } == ({"conntrack/INSERT_FAILED/after": lost} if lost else {})
    assert not any("reinject" in name for name in drops)
    before = sum(count for name, count in drops.items() if name.endswith("/before"))
    assert answer["accepted"] + before <= answer["arrived"]
    entries = netns_pair.victim.run("cat", "/proc/net/stat/nf_conntrack").stdout
    column = entries.splitlines()[0].split().index("insert_failed")
    assert sum(int(line.split()[column], 16) for line in entries.splitlines()[1:]) == lost
