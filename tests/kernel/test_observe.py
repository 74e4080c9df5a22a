"""Observation of real packets in real namespaces, by a process without privileges."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.kernel.conftest import Host, NetnsPair
from tests.kernel.observing import named, observing, samples, send
from tests.kernel.wire import (
    attach_foreign_xdp,
    checksummed,
    inside,
    let_arrive,
    mac,
    meet,
    send_datagrams,
    send_frames,
)

pytestmark = pytest.mark.kernel
XDP_DROP = 1


@pytest.mark.parametrize("without", ["", "tcx"])
def test_drops_by_iptables_are_counted_exactly_with_contents(netns_pair: NetnsPair, without: str) -> None:
    meet(netns_pair)
    netns_pair.victim.run(
        "iptables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "9", "-j", "DROP"
    )
    with observing(netns_pair.victim, without=without) as observer:
        send(netns_pair, 9, 200)
        answer = observer.ask("wait 200")
    assert answer["uid"] == 65534
    assert answer["protocols"]["udp"] == [200, 200 * (14 + 28 + len("attack"))]
    assert not samples(answer, hook="ACCEPTED", protocol=17)
    assert named(answer) == {"netfilter/NETFILTER_DROP/before": 200}
    (drop,) = samples(answer, hook="DROP", reason="NETFILTER_DROP")
    assert drop["payload"] == b"attack".hex()
    assert (drop["reason"], drop["dport"], drop["weight"]) == ("NETFILTER_DROP", 9, 200.0)
    (arrived,) = samples(answer, hook="INGRESS", protocol=17)
    assert (arrived["records"], arrived["dport"]) == (200, 9)
    assert answer["lost"] == 0


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_packets_without_a_socket_are_accepted_then_dropped(netns_pair: NetnsPair, family: str) -> None:
    meet(netns_pair)
    with observing(netns_pair.victim) as observer:
        send(netns_pair, 4242, 50, to=getattr(netns_pair.victim, family))
        answer = observer.ask("wait 50")
    assert answer["drops"]["socket/NO_SOCKET/after"] == 50
    if observer.sees_accepted:
        (accepted,) = samples(answer, hook="ACCEPTED", dport=4242)
        assert accepted["weight"] == 50
    assert 50 <= answer["accepted"] <= answer["arrived"]  # besides, there is IPv6 talking to itself


def test_nft_drop_in_input_is_not_accepted(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    rules = "table inet t { chain c { type filter hook input priority 200; udp dport 5000 drop; }; }"
    netns_pair.victim.run("nft", rules)
    with observing(netns_pair.victim) as observer:
        send(netns_pair, 5000, 30)
        send(netns_pair, 5001, 20, "other")
        answer = observer.ask("wait 50")
    if observer.sees_accepted:
        assert samples(answer, hook="ACCEPTED", protocol=17)[0]["weight"] == 20
    assert named(answer) == {"netfilter/NETFILTER_DROP/before": 30, "socket/NO_SOCKET/after": 20}
    assert not samples(answer, hook="ACCEPTED", dport=5000)


def test_netfilters_drops_before_and_behind_routing_are_told_apart(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    netns_pair.victim.run(
        "nft",
        "table inet t { chain early { type filter hook prerouting priority -150; udp dport 9 drop; }; "
        "chain late { type filter hook input priority 0; udp dport 10 drop; }; }",
    )
    with observing(netns_pair.victim) as observer:
        send(netns_pair, 9, 40)
        send(netns_pair, 10, 25)
        send(netns_pair, 10, 15, to=netns_pair.victim.ipv6)
        answer = observer.ask("wait 80")
    assert named(answer) == {"netfilter/NETFILTER_DROP/before": 80}
    assert answer["filtered"] == 40


def test_drops_in_another_namespace_are_not_counted(netns_pair: NetnsPair) -> None:
    """Even if the other side's interface has the same number."""
    meet(netns_pair)
    netns_pair.attacker.run("iptables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "DROP")
    with observing(netns_pair.victim) as observer:
        send_datagrams(netns_pair.victim, netns_pair.attacker.ipv4, 9, 100, "away")
        send(netns_pair, 4242, 10)
        answer = observer.ask("wait 10")
    assert answer["protocols"]["udp"][0] == 10
    assert named(answer) == {"socket/NO_SOCKET/after": 10}


def test_own_packets_dropped_on_the_way_out_are_not_arrivals(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    netns_pair.victim.run("iptables", "-A", "OUTPUT", "-p", "udp", "--dport", "77", "-j", "DROP")
    with observing(netns_pair.victim) as observer:
        send_datagrams(netns_pair.victim, netns_pair.attacker.ipv4, 77, 40, "out")
        answer = observer.ask("poll")
    assert "netfilter/NETFILTER_DROP/before" not in answer["drops"]
    assert not samples(answer, dport=77)
    assert "udp" not in answer["protocols"]


@pytest.mark.parametrize("tags", ["8100002a", "88a8002a81000007"])
def test_vlan_tags_are_captured_and_packets_behind_them_counted(netns_pair: NetnsPair, tags: str) -> None:
    """The kernel removes the outer tag before tc; without an interface for it the packet is dropped."""
    meet(netns_pair)
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 32, 1, 0, 64, 17, 0, bytes((10, 77, 0, 2)), bytes((10, 77, 0, 1))
    )
    datagram = struct.pack("!HHHH", 1234, 4242, 12, 0) + b"deep"
    frame = bytes(12) + bytes.fromhex(tags) + b"\x08\x00" + header + datagram
    with observing(netns_pair.victim) as observer:
        send_frames(netns_pair.attacker, frame, times=25)
        answer = observer.ask("wait 25")
    (arrived,) = samples(answer, hook="INGRESS", dport=4242)
    assert (arrived["vlan"], arrived["records"], arrived["payload"]) == (42, 25, b"deep".hex())
    assert answer["protocols"]["udp"][0] == 25
    assert sum(named(answer).values()) == 25


def test_drops_by_another_xdp_program_are_reported(
    netns_pair: NetnsPair, poll_until: Callable[..., object]
) -> None:
    meet(netns_pair)
    victim, attacker = netns_pair.victim, netns_pair.attacker
    frame = mac(victim) + bytes(6) + b"\x08\x00" + bytes(60)
    with observing(victim) as observer:
        attach_foreign_xdp(victim, XDP_DROP)
        observer.ask("poll")
        before = received(victim)
        send_frames(attacker, frame, times=500)
        dropped = received(victim) - before
        assert dropped >= 500
        told = 0

        def nearly_all() -> bool:  # a drop is told once it has lasted, and twenty may be on their way
            nonlocal told
            answer = observer.ask("poll")
            assert answer["arrived"] == 0
            told += answer["drops"].get("xdp/XDP_DROP (foreign)/before", 0)
            return told >= dropped - 20

        poll_until(nearly_all)
    assert told <= dropped


@pytest.mark.parametrize("without", ["", "netfilter"])
def test_merged_tcp_is_counted_in_wire_packets(netns_pair: NetnsPair, without: str) -> None:
    """GRO passes fewer, larger packets to the stack than the wire carried."""
    victim, attacker = netns_pair.victim, netns_pair.attacker
    victim.run("ethtool", "-K", victim.interface, "gro", "on")
    attacker.run("ethtool", "-K", attacker.interface, "tso", "off", "gso", "off")
    with inside(victim.netns):
        server = socket.create_server((victim.ipv4, 8000))
    with server, observing(victim, without=without) as observer:
        before = received(victim)
        reader = threading.Thread(target=read_all, args=(server,))
        reader.start()
        with inside(attacker.netns), socket.create_connection((victim.ipv4, 8000), timeout=60) as client:
            client.sendall(bytes(3_000_000))
        reader.join()
        packets = received(victim) - before
        answer = observer.ask(f"wait {packets}")
    assert packets > 2000
    size = 3_000_000 + packets * (14 + 20 + 32)  # Ethernet, IP, TCP with timestamps
    assert abs(answer["arrived"] - packets) <= 4  # ARP and the like
    assert abs(answer["bytes"] - size) < 0.001 * size
    assert abs(answer["accepted"] - packets) <= 4
    if observer.sees_accepted:
        assert abs(answer["accepted_bytes"] - size) < 0.001 * size


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_the_last_packets_of_a_connection_that_the_server_closed_are_no_drops(
    netns_pair: NetnsPair, poll_until: Callable[..., object], family: str
) -> None:
    """The server's end waits in TIME_WAIT for the client's FIN, once its own is acknowledged."""
    meet(netns_pair)
    victim = netns_pair.victim
    address = getattr(victim, family)
    with inside(victim.netns):
        kind = socket.AF_INET6 if family == "ipv6" else socket.AF_INET
        server = socket.create_server((address, 8000), family=kind)
    with server, observing(victim) as observer:
        with ExitStack() as clients:
            for _ in range(50):
                with inside(netns_pair.attacker.netns):
                    clients.enter_context(socket.create_connection((address, 8000), timeout=60))
                server.accept()[0].close()
            poll_until(lambda: "FIN-WAIT-1" not in victim.run("ss", "-tan").stdout)
        answer = observer.ask("wait 200")
    assert not [name for name in answer["drops"] if "tcp_v" in name]


def read_all(server: socket.socket) -> None:
    server.settimeout(60)
    connection, _ = server.accept()
    with connection:
        while connection.recv(65536):
            pass


def received(host: Host) -> int:
    """Packets counted by the interface before GRO."""
    link = json.loads(host.run("ip", "-s", "-j", "link", "show", host.interface).stdout)[0]
    return int(link["stats64"]["rx"]["packets"])


@pytest.mark.parametrize("without", ["", "netfilter"])
def test_new_connections_are_counted_once_each(netns_pair: NetnsPair, without: str) -> None:
    meet(netns_pair)
    netns_pair.victim.run("iptables", "-A", "INPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
    with observing(netns_pair.victim, without=without) as observer, ExitStack() as open_sockets:
        for port in range(20000, 20100):
            with inside(netns_pair.attacker.netns):
                sender = open_sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sender.bind(("", port))
            for _ in range(3):
                sender.sendto(b"x", (netns_pair.victim.ipv4, 4242))
        let_arrive()
        answer = observer.ask("poll")
    assert answer["new_connections"] == 100


def test_drops_without_a_reason_are_named_by_function(
    netns_pair: NetnsPair, poll_until: Callable[..., object]
) -> None:
    """An IGMP report for a group without members is freed by igmp_rcv, without a reason.

    Root is asked for names every 10 s at most: after another drop it has none until then.
    """
    meet(netns_pair)
    igmp = checksummed(bytes((0x16, 0, 0, 0, 224, 0, 0, 9)), 2)
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 28, 1, 0, 1, 2, 0, bytes((10, 77, 0, 2)), bytes((10, 77, 0, 1))
    )
    frame = mac(netns_pair.victim) + bytes(6) + b"\x08\x00" + checksummed(header, 10) + igmp
    with observing(netns_pair.victim) as observer:

        def are_named() -> bool:
            send_frames(netns_pair.attacker, frame, times=12)
            return observer.ask("wait 12")["drops"].get("ip/NOT_SPECIFIED (igmp_rcv)/after") == 12

        poll_until(are_named)


def test_each_packets_verdict_is_what_the_kernel_did_with_it(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    victim = netns_pair.victim
    victim.run("iptables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "9", "-j", "DROP")
    with inside(victim.netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as service:
        service.bind((victim.ipv4, 7777))
        with observing(victim) as observer:
            if not observer.sees_accepted:
                pytest.skip("accepted packets are sampled apart before Linux 6.4")
            send(netns_pair, 9, 40)
            send(netns_pair, 4242, 30)
            send(netns_pair, 7777, 20)
            answer = observer.ask("wait 90")
    told = {
        key: count for key, count in answer["verdicts"].items() if key.split()[0] in ("9", "4242", "7777")
    }
    assert told == {"9 other NETFILTER_DROP": 40, "4242 kernel NO_SOCKET": 30, "7777 reaches accepted": 20}
