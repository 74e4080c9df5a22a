"""Watched interfaces that appear, disappear and change, and interfaces without Ethernet."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fwtop.kernel.procfs import NapiThreads, read_text
from fwtop.kernel.programs import module_argv
from tests.kernel.conftest import NetnsPair, ip
from tests.kernel.observing import Observer, named, observing, samples, send
from tests.kernel.wire import checksummed, meet, send_datagrams

pytestmark = pytest.mark.kernel
GONE = "v0 is gone; it will be watched again when it is back"

# Writes IP packets into a tun interface, as a VPN's daemon does.
TUN_WRITER = """
import fcntl, os, struct, sys
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), 0x1001))  # IFF_TUN | IFF_NO_PI
for _ in range(int(sys.argv[3])):
    os.write(tun, bytes.fromhex(sys.argv[2]))
"""


def count_udp(pair: NetnsPair, observer: Observer, to: str = "", wait: int = 20) -> dict[str, Any]:
    """Send 20 packets to a closed port; returns what was seen of them."""
    observer.ask("poll")
    send(pair, 4242, 20, to=to)
    answer = observer.ask(f"wait {wait}")
    assert answer["protocols"]["udp"][0] == 20
    assert named(answer) == {"socket/NO_SOCKET/after": 20}
    (accepted,) = samples(answer, hook="ACCEPTED", dport=4242)
    assert accepted["weight"] == 20
    return answer


def notes(observer: Observer) -> list[str]:
    listed: list[str] = observer.ask("poll")["notes"]
    return listed


def make_again(pair: NetnsPair) -> None:
    """Recreate the veth pair, with another interface number."""
    victim, attacker = pair.victim, pair.attacker
    peer = ("type", "veth", "peer", "name", "a0", "netns", attacker.netns)
    ip("-n", victim.netns, "link", "add", "v0", *peer)
    for host in (victim, attacker):
        ip("-n", host.netns, "address", "add", f"{host.ipv4}/24", "dev", host.interface)
        ip("-n", host.netns, "link", "set", host.interface, "up")


def test_down_and_up_mtu_and_renaming(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    victim = netns_pair.victim
    with observing(victim) as observer:
        ip("-n", victim.netns, "link", "set", "v0", "mtu", "1280")
        assert notes(observer) == []
        ip("-n", victim.netns, "link", "set", "v0", "down")
        assert notes(observer) == ["v0 is down"]
        ip("-n", victim.netns, "link", "set", "v0", "name", "w0")
        ip("-n", victim.netns, "link", "set", "w0", "up")
        assert notes(observer) == ["v0 is now called w0"]
        meet(netns_pair, netns_pair.victim.ipv4)
        count_udp(netns_pair, observer)
        ip("-n", victim.netns, "link", "set", "w0", "down")
        ip("-n", victim.netns, "link", "set", "w0", "name", "v0")
        ip("-n", victim.netns, "link", "set", "v0", "up")
        assert notes(observer) == []


@pytest.mark.parametrize("windows", ["", "1"])
def test_a_recreated_interface_stays_watched(
    netns_pair: NetnsPair, windows: str, poll_until: Callable[..., object]
) -> None:
    meet(netns_pair)
    observer = Observer(netns_pair.victim, ["v0"], windows=windows)
    try:
        assert notes(observer) == []
        ip("-n", netns_pair.victim.netns, "link", "delete", "v0")
        poll_until(lambda: notes(observer) == [GONE])
        make_again(netns_pair)
        poll_until(lambda: notes(observer) == [])
        meet(netns_pair, netns_pair.victim.ipv4)
        if windows:  # whatever the windows saw, all is counted that the new interface received
            observer.ask("poll")
            send(netns_pair, 4242, 20_000)
            counted = observer.ask("watch 1")["arrived"]
            assert counted == pytest.approx(20_000, rel=0.05)
        else:
            count_udp(netns_pair, observer)
    finally:
        observer.close()


def test_an_interface_that_leaves_the_namespace_and_returns(netns_pair: NetnsPair) -> None:
    """It keeps its number; in another namespace its packets are not counted."""
    meet(netns_pair)
    victim, attacker = netns_pair.victim, netns_pair.attacker
    with observing(victim) as observer:
        ip("-n", victim.netns, "link", "set", "v0", "netns", attacker.netns)
        assert notes(observer) == [GONE]
        ip("-n", attacker.netns, "link", "set", "v0", "up")
        ip("-n", attacker.netns, "link", "set", "v0", "netns", victim.netns)
        ip("-n", victim.netns, "address", "add", f"{victim.ipv4}/24", "dev", "v0")
        ip("-n", victim.netns, "link", "set", "v0", "up")
        assert notes(observer) == []
        meet(netns_pair, netns_pair.victim.ipv4)
        count_udp(netns_pair, observer)


def test_the_filter_of_older_kernels_needs_a_restart(netns_pair: NetnsPair) -> None:
    with observing(netns_pair.victim, without="tcx") as observer:
        ip("-n", netns_pair.victim.netns, "link", "delete", "v0")
        assert notes(observer) == ["v0 is gone"]
        make_again(netns_pair)
        told = "v0 was recreated, and this kernel lets only root attach: restart fwtop"
        assert notes(observer) == [told]


def add_bridge(pair: NetnsPair) -> None:
    """Put a bridge on v0, which receives its packets like a VLAN or a bond."""
    victim = pair.victim
    ip("-n", victim.netns, "link", "add", "br0", "type", "bridge")
    ip("-n", victim.netns, "link", "set", "v0", "master", "br0")
    ip("-n", victim.netns, "link", "set", "br0", "up")
    ip("-n", victim.netns, "address", "add", "10.79.0.1/24", "dev", "br0")
    ip("-n", pair.attacker.netns, "address", "add", "10.79.0.2/24", "dev", "a0")
    meet(pair, "10.79.0.1")


@pytest.mark.parametrize("watched", [["v0"], ["br0", "v0"], ["br0"]])
def test_packets_passed_between_interfaces_are_counted_once(
    netns_pair: NetnsPair, watched: list[str]
) -> None:
    add_bridge(netns_pair)
    with observing(netns_pair.victim, watched) as observer:
        count_udp(netns_pair, observer, to="10.79.0.1")


def test_an_interface_created_on_top_of_a_watched_one_is_included(netns_pair: NetnsPair) -> None:
    with observing(netns_pair.victim) as observer:
        add_bridge(netns_pair)
        assert notes(observer) == []
        count_udp(netns_pair, observer, to="10.79.0.1")


def add_macvlan(pair: NetnsPair) -> None:
    """Put an interface with its own hardware address on v0."""
    netns = pair.victim.netns
    # Else v0 answers for m0's address, too, and whichever answer comes last has the packets
    pair.victim.run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
    ip("-n", netns, "link", "add", "link", "v0", "name", "m0", "type", "macvlan", "mode", "bridge")
    ip("-n", netns, "address", "add", "10.79.0.1/24", "dev", "m0")
    ip("-n", netns, "link", "set", "m0", "up")
    ip("-n", pair.attacker.netns, "address", "add", "10.79.0.2/24", "dev", "a0")
    meet(pair, "10.79.0.1")


@pytest.mark.parametrize("watched", [["v0"], ["v0", "m0"], ["m0"]])
def test_an_interface_on_top_of_another_is_counted_once(netns_pair: NetnsPair, watched: list[str]) -> None:
    add_macvlan(netns_pair)
    with observing(netns_pair.victim, watched) as observer:
        count_udp(netns_pair, observer, to="10.79.0.1")


def test_another_kind_of_interface_of_the_same_name_needs_a_restart(netns_pair: NetnsPair) -> None:
    netns = netns_pair.victim.netns
    with observing(netns_pair.victim) as observer:
        ip("-n", netns, "link", "delete", "v0")
        ip("-n", netns, "tuntap", "add", "mode", "tun", "name", "v0")
        told = "v0 was recreated as another kind of interface: restart fwtop to watch it"
        assert notes(observer) == [told]


def test_too_many_upper_interfaces_are_reported(netns_pair: NetnsPair) -> None:
    netns = netns_pair.victim.netns
    with observing(netns_pair.victim) as observer:
        for number in range(8):
            name = f"m{number}"
            ip("-n", netns, "link", "add", "link", "v0", "name", name, "type", "macvlan", "mode", "bridge")
        assert notes(observer) == [
            "too many interfaces on top of the watched ones: restart fwtop to watch them all"
        ]
        for number in range(8):
            ip("-n", netns, "link", "delete", f"m{number}")
        assert notes(observer) == []


def ipv4_datagram(payload: bytes) -> bytes:
    addresses = socket.inet_aton("10.80.0.2") + socket.inet_aton("10.80.0.1")
    header = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 1, 0, 64, 17, 0) + addresses
    return checksummed(header, 10) + struct.pack("!HHHH", 1234, 4242, 8 + len(payload), 0) + payload


def ipv6_datagram(payload: bytes) -> bytes:
    addresses = socket.inet_pton(socket.AF_INET6, "fd80::2") + socket.inet_pton(socket.AF_INET6, "fd80::1")
    size = 8 + len(payload)
    checked = addresses + struct.pack("!IIHHHH", size, 17, 1234, 4242, size, 0) + payload
    checksum = checksummed(checked + bytes(len(checked) % 2), 38)[38:40]
    udp = struct.pack("!HHH", 1234, 4242, size) + checksum
    return struct.pack("!IHBB", 6 << 28, size, 17, 64) + addresses + udp + payload


@pytest.mark.parametrize("datagram", [ipv4_datagram(b"inner"), ipv6_datagram(b"inner")])
def test_an_interface_without_ethernet_headers(netns_pair: NetnsPair, datagram: bytes) -> None:
    victim = netns_pair.victim
    ip("-n", victim.netns, "tuntap", "add", "mode", "tun", "name", "tun0")
    ip("-n", victim.netns, "address", "add", "10.80.0.1/24", "dev", "tun0")
    ip("-n", victim.netns, "address", "add", "fd80::1/64", "dev", "tun0", "nodad")
    ip("-n", victim.netns, "link", "set", "tun0", "up")
    with observing(victim, ["tun0"]) as observer:
        victim.run(sys.executable, "-c", TUN_WRITER, "tun0", datagram.hex(), "25")
        answer = observer.ask("wait 25")
    assert answer["protocols"]["udp"] == [25, 25 * len(datagram)]
    assert named(answer)["socket/NO_SOCKET/after"] == 25
    for hook in ("INGRESS", "DROP", "ACCEPTED"):
        (seen,) = samples(answer, hook=hook, dport=4242)
        assert (seen["records"], seen["payload"]) == (25, b"inner".hex())


def test_packets_on_loopback_are_counted_and_sampled(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    with observing(victim, ["lo"]) as observer:
        sender = (
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for _ in range(20): s.sendto(b'self', ('127.0.0.1', 4242))"
        )
        victim.run(sys.executable, "-c", sender)
        answer = observer.ask("wait 20")
    (arrived,) = samples(answer, hook="INGRESS", dport=4242)
    assert (arrived["records"], arrived["payload"]) == (20, b"self".hex())
    assert answer["drops"]["socket/NO_SOCKET/after"] == 20


def test_a_snapshot_of_none_that_is_there_says_so_in_json(netns_pair: NetnsPair) -> None:
    """The console says it, which the launcher started."""
    argv = module_argv("fwtop", "snapshot", "--json", "-i", "nope0", "--netns", netns_pair.victim.netns)
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], told["code"], told["reason"]) == (2, False, 2, "invalid")
    assert done.stderr == f"fwtop: {told['error']}\n"


def test_the_time_of_threads_that_receive_counts_as_that_of_softirqs(netns_pair: NetnsPair) -> None:
    """Where NAPI runs in threads, a flood of 100,000 packets a second cost "0 % of a core"."""
    if read_text("/proc/2/comm").strip() != "kthreadd":
        pytest.skip("the kernel's threads can't be seen from this PID namespace")
    meet(netns_pair)
    victim = netns_pair.victim
    victim.run("ethtool", "-K", "v0", "gro", "on")
    # Else what the peer's own sockets send passes NAPI by: veth_skb_is_eligible_for_gro, drivers/net/veth.c
    netns_pair.attacker.run("ethtool", "-K", "a0", "tso", "off")
    victim.run("sh", "-c", "echo 1 > /sys/class/net/v0/threaded")
    threads = NapiThreads()
    before = threads.ticks()
    for _ in range(40):
        send_datagrams(netns_pair.attacker, victim.ipv4, 4242, 5_000, "x")
        if threads.ticks() - before >= 3:
            return
    raise AssertionError("200,000 packets took no time")
