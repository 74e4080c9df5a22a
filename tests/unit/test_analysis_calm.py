"""Traffic that looks like a flood at one glance: each sort was once named one."""

from __future__ import annotations

import string
import struct
from random import Random

import numpy as np
import pytest
from analysis_factory import ethernet, icmp, ip, make_batch, make_window, tcp, udp
from analysis_flows import HOST, OPTIONS, STAMPS, Frame, connection, hosts, judge, visitors
from analysis_payloads import client_hello, dns_name

from fwtop.analysis.attacks.udp_flood import above_normal, datagrams
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import CLASSES, Baseline


def datagram(at: float, src: bytes, ports: tuple[int, int], data: bytes, *, ttl: int | None = None) -> Frame:
    return at, ethernet(ip(src, HOST, 17, udp(*ports, data), ttl=ttl or 64 - src[3] % 20))


def question(rng: Random, at: float, src: bytes, name: str, *, ttl: int | None = None) -> Frame:
    head = rng.randbytes(2) + b"\1\0\0\1\0\0\0\0\0\0"
    data = head + dns_name(name) + rng.choice((b"\0\1", b"\0\x1c")) + b"\0\1"
    return datagram(at, src, (rng.randrange(1024, 65536), 53), data, ttl=ttl)


def test_clients_of_one_network_ask_their_resolver_for_a_few_popular_names() -> None:
    rng = Random(1)
    names = [
        f"{label}.{site}.example" for site in ("search", "mail", "news") for label in ("www", "api", "img")
    ]
    clients = [bytes([10, 3, 0, n]) for n in range(2, 250)]
    popularity = [1 / (rank + 1) for rank in range(len(names))]
    frames = [
        question(rng, rng.random() * 10, rng.choice(clients), rng.choices(names, popularity)[0], ttl=64)
        for _ in range(3000)
    ]
    assert judge(frames, seconds=10.0) == {}


def test_names_of_a_content_network_are_random_but_lived_in() -> None:
    rng = Random(2)
    letters = string.ascii_lowercase + string.digits
    names = [f"d{''.join(rng.choices(letters, k=13))}.cdn.example" for _ in range(3000)]
    popularity = [(rank + 1) ** -0.9 for rank in range(len(names))]
    resolvers = hosts(rng, 2000)
    frames = [
        question(rng, rng.random() * 3, rng.choice(resolvers), name)
        for name in rng.choices(names, popularity, k=5000)
    ]
    assert judge(frames, seconds=3.0) == {}


def test_some_lookups_by_hash_are_no_attack_on_their_zone() -> None:
    rng = Random(3)
    clients = hosts(rng, 200)
    daily = [
        question(rng, rng.random() * 10, rng.choice(clients), f"h{rng.randrange(60)}.example")
        for _ in range(2000)
    ]
    hashes = [
        question(rng, rng.random() * 10, rng.choice(clients), f"{rng.randbytes(13).hex()}.av.example")
        for _ in range(80)
    ]
    assert judge(daily + hashes, seconds=10.0) == {}


def test_a_gateway_that_polls_devices_takes_a_new_port_for_each_question() -> None:
    rng = Random(4)
    gateway = hosts(rng, 1)[0]
    polls = []
    for _ in range(400):
        ask = b"\x40\1" + rng.randbytes(2) + b"\xb4temp"
        polls.append(datagram(rng.random() * 10, gateway, (rng.randrange(1024, 65536), 5683), ask))
    assert judge(polls, seconds=10.0) == {}


def test_devices_that_are_polled_in_turn_amplify_nothing() -> None:
    rng = Random(4)
    devices = hosts(rng, 200)

    def answers(size: int) -> list[Frame]:
        body = b"\x30\x82" + (size - 4).to_bytes(2) + b"\x02\x01\x01\x04\x06public\xa2" + bytes(size - 18)
        return [
            datagram(k / 600, devices[k % 200], (161, 41_000), body[:-4] + rng.randbytes(4))
            for k in range(2_400)
        ]

    assert judge(answers(110)) == {}
    assert set(judge(answers(1_200))) == {"snmp_amplification"}


def test_apps_that_return_at_once_open_a_websocket_each() -> None:
    rng = Random(8)
    ask = (
        b"GET /live HTTP/1.1\r\nHost: app.example\r\nConnection: %s\r\n"
        b"Sec-WebSocket-Version: 13\r\nUser-Agent: App/3.1\r\n\r\n"
    )

    def opened(header: bytes) -> list[Frame]:
        return [
            frame
            for app in hosts(rng, 400) * 2
            for frame in connection(rng, app, 80, [ask % header], end="", answered=129)
        ]

    assert judge(opened(b"Upgrade")) == {}
    assert set(judge(opened(b"close"))) == {"http_flood"}


def test_machines_that_boot_ask_for_the_same_file() -> None:
    rng = Random(5)
    frames = [
        datagram(rng.random() * 5, machine, (rng.randrange(1024, 65536), 69), b"\0\1pxelinux.0\0octet\0")
        for machine in hosts(rng, 80)
        for _ in range(3)
    ]
    assert judge(frames, seconds=5.0) == {}


def test_a_transport_stream_is_no_flood() -> None:
    rng = Random(6)
    sender = hosts(rng, 1)[0]

    def cells(first: int) -> bytes:
        return b"".join(b"\x47\1\0" + bytes([0x10 | (first + i) & 15]) + rng.randbytes(184) for i in range(7))

    frames = [datagram(i / 2000, sender, (42_000, 1234), cells(7 * i)) for i in range(3000)]
    assert judge(frames, seconds=1.5) == {}


def test_a_tunnel_of_few_sizes_carries_the_same_hosts_and_a_flood_does_not() -> None:
    rng = Random(7)
    peer = hosts(rng, 1)[0]

    def outer(inner: tuple[bytes, bytes]) -> bytes:
        body = ip(*inner, 6, rng.randbytes(rng.choice((20, 520, 1420))), ttl=63)
        return ethernet(ip(peer, HOST, 47, b"\0\0\x08\0" + body, ttl=57))

    ends = (bytes([10, 9, 0, 1]), bytes([10, 9, 0, 2]))
    assert judge([(i / 2000, outer(ends)) for i in range(4000)], seconds=2.0) == {}
    flood = [(i / 2000, outer((rng.randbytes(4), rng.randbytes(4)))) for i in range(4000)]
    assert set(judge(flood, seconds=2.0)) == {"gre_flood"}


def test_a_page_with_many_pictures_is_fetched_at_once() -> None:
    rng = Random(8)
    client = hosts(rng, 1)[0]
    frames: list[Frame] = []
    for k in range(6):
        words = b" HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: Mozilla/5.0\r\n\r\n"
        loads = [b"GET /img/%06d.png" % rng.randrange(10**6) + words for _ in range(14)]
        frames += connection(rng, client, 80, loads, gap=0.03, at=0.02 * k)
    assert judge(frames, seconds=0.6) == {}


def test_balancers_that_look_whether_a_server_answers_begin_sessions_and_leave() -> None:
    rng = Random(9)
    frames: list[Frame] = []
    for balancer in hosts(rng, 6):
        for i in range(20):
            at = 2 * i + rng.random()
            frames += connection(rng, balancer, 443, [client_hello(rng)], at=at, answered=3500)
    assert judge(frames, seconds=40.0) == {}


def test_a_few_hosts_that_ping_are_no_flood() -> None:
    rng = Random(10)
    frames = [
        (i / 20 + rng.random() / 100, ethernet(ip(host, HOST, 1, icmp(8, 0, bytes(56)), ttl=60)))
        for host in hosts(rng, 3)
        for i in range(60)
    ]
    assert judge(frames, seconds=3.0) == {}


def test_programs_that_watch_a_page_are_no_flood() -> None:
    rng = Random(11)
    load = b"GET /status HTTP/1.1\r\nHost: 10.10.10.10\r\nAccept-Encoding: identity\r\n\r\n"
    frames: list[Frame] = []
    for watcher in hosts(rng, 30):
        frames += connection(rng, watcher, 80, [load] * 6, gap=0.5, at=rng.random())
    assert judge(frames) == {}


@pytest.mark.parametrize("pace", [800, 16_000])
def test_a_measurement_that_numbers_its_packets_is_no_flood(pace: int) -> None:
    """iperf3's datagrams: seconds, microseconds, a number, then the same digits in all."""
    rng = Random(12)
    sender = hosts(rng, 1)[0]
    frames = []
    for i in range(1600):
        head = (i // pace).to_bytes(4) + (i * 1_000_000 // pace % 1_000_000).to_bytes(4) + i.to_bytes(4)
        frames.append(datagram(i / pace, sender, (40_000, 5201), head + b"0123456789" * 118))
    assert judge(frames, seconds=1600 / pace) == {}


def test_samples_that_end_before_the_flags_or_the_payload_accuse_nobody() -> None:
    rng = Random(13)
    server, peer = b"\x20\x01\x0d\xb8" + bytes(11) + b"\1", b"\x2a\x02" + rng.randbytes(14)
    frames: list[Frame] = []
    for _ in range(60):
        client, own, seq = b"\x2a\x02" + rng.randbytes(14), rng.randrange(32_768, 61_000), rng.getrandbits(31)
        at = rng.random() * 3
        for step, (flags, options, data) in enumerate(
            [(2, OPTIONS, b"")] + [(flags, STAMPS, b"") for flags in (16, 16, 16, 17)]
        ):
            body = tcp(own, 443, flags, seq=seq + step, ack=9, options=options, data=data)
            frames.append((at + step / 50, ethernet(ip(client, server, 6, body, ttl=55))))
    assert judge(frames, snap=64) == {}
    stream = [
        (i / 400, ethernet(ip(peer, server, 17, udp(40_000, 5004, bytes(2) + rng.randbytes(600)), ttl=55)))
        for i in range(1600)
    ]
    assert judge(stream, snap=64) == {}


def test_neighbours_look_for_services_by_two_protocols_at_once() -> None:
    rng = Random(21)
    machines = hosts(rng, 16)
    searches = (
        (427, bytes.fromhex("020100003100000000000001000278790000")),
        (5353, bytes.fromhex("000000000001000000000000055f68747470045f746370056c6f63616c00000c0001")),
    )
    frames = []
    for number in range(120):
        port, data = searches[number % 2]
        sport = 5353 if port == 5353 else rng.randrange(32_768, 61_000)
        frames.append(datagram(rng.random() * 3, rng.choice(machines), (sport, port), data))
    assert judge(frames, seconds=3.0) == {}


def calls(rng: Random, callers: int) -> list[Frame]:
    """Voice calls for 4 s: RTP, 50 packets a second to a port each."""
    frames = []
    for caller in hosts(rng, callers):
        ports = (rng.randrange(16_384, 32_768), rng.randrange(10_000, 20_000))
        first, stream = rng.getrandbits(15), rng.randbytes(4)
        for k in range(200):
            head = struct.pack("!BBHI", 0x80, 8, first + k, 160 * k) + stream
            frames.append(datagram((k + rng.random()) / 50, caller, ports, head + rng.randbytes(160)))
    return frames


def test_calls_are_no_flood_for_what_else_arrives() -> None:
    rng = Random(9)
    client, head = hosts(rng, 1)[0], rng.randbytes(24)
    storage = [datagram(k / 100, client, (800, 2049), head + rng.randbytes(900)) for k in range(400)]
    assert judge([*calls(rng, 24), *storage]) == {}
    frames = [*calls(rng, 12), *calls(rng, 12), *storage]
    flood = [
        datagram(rng.random() * 4, bot, (4000, rng.randrange(1024, 65_536)), rng.randbytes(400))
        for bot in hosts(rng, 40) * 150
    ]
    found = judge([*frames, *flood])
    assert set(found) == {"udp_flood"}
    whole = len(frames) + len(flood)
    assert len(flood) / whole <= found["udp_flood"].share < (len(flood) + len(storage) + 1) / whole  # no call


@pytest.mark.parametrize(("usual", "unusual"), [(2_000.0, False), (50.0, True)])
def test_only_what_exceeds_the_usual_rate_is_above_normal(usual: float, unusual: bool) -> None:
    rng, baseline = Random(10), Baseline()
    baseline.keep_rates(np.where(np.array(CLASSES) == "udp", usual, 100.0), 20.0)
    baseline.keep_rows(make_batch(visitors(rng, 60)))
    thin = [frame for frame in sorted(calls(rng, 10)) if rng.random() < 1 / 40]  # too few to see them count
    window = make_window(make_batch(thin, weight=40.0), 4.0, live=True)
    groups = datagrams(make_context(window, AdviseConfig(), baseline))
    assert any(group[above_normal] >= 1 for group in groups) is unusual
