"""Floods of requests that were once missed, and pages and programs that do nearly the same."""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random

import pytest
from analysis_factory import ethernet, ip, udp
from analysis_flows import HOST, Frame, connection, hosts, judge, segment, visitors
from analysis_payloads import client_hello, dns_answer

AGENTS = [
    b"Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/%d.0" % version for version in range(90, 130)
] + [b"Mozilla/5.0 (X11; Linux x86_64; rv:%d.0) Firefox/%d.0" % (v, v) for v in range(80, 110)]


def word(rng: Random, length: int) -> bytes:
    return "".join(rng.choices(string.ascii_lowercase, k=length)).encode()


def get(target: bytes, agent: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: %s\r\nAccept: */*\r\n\r\n" % (
        target,
        agent,
    )


def clients(rng: Random, count: int, each: int, load: Callable[[bytes], bytes]) -> list[Frame]:
    frames: list[Frame] = []
    for client in hosts(rng, count):
        frames += connection(rng, client, 80, [load(client) for _ in range(each)], gap=0.1)
    return frames


def test_queries_with_ever_new_names_get_around_caches_whatever_the_agent() -> None:
    rng = Random(1)
    busting = clients(
        rng, 150, 8, lambda _: get(b"/?%s=%s" % (word(rng, 5), word(rng, 8)), rng.choice(AGENTS))
    )
    assert set(judge(busting)) == {"http_flood"}


def test_ever_new_values_of_one_name_are_a_pages_own() -> None:
    rng = Random(2)
    beacons = clients(
        rng, 150, 8, lambda _: get(b"/collect?cid=%d" % rng.getrandbits(40), rng.choice(AGENTS))
    )
    assert judge(beacons) == {}


@pytest.mark.parametrize(("path", "kinds"), [(b"/", {"http_flood"}), (b"/api/feed", set())])
def test_programs_that_ask_for_the_front_page_anew_each_time_are_pingbacks(
    path: bytes, kinds: set[str]
) -> None:
    rng = Random(3)
    frames: list[Frame] = []
    for client in hosts(rng, 300):
        agent = b"WordPress/%d.%d; http://%s.example; verifying pingback" % (
            rng.randrange(3, 6),
            rng.randrange(9),
            word(rng, 9),
        )
        load = get(b"%s?v=%d" % (path, rng.getrandbits(40)), agent)
        frames += connection(rng, client, 80, [load])
    assert set(judge(frames)) == kinds


def test_many_handshakes_on_one_connection_are_renegotiation() -> None:
    rng = Random(4)
    frames = visitors(rng, 40)
    for client in hosts(rng, 4):
        records = [b"\x16\x03\x03\x01\x20" + rng.randbytes(288) for _ in range(120)]
        frames += connection(rng, client, 443, records, gap=0.02)
    found = judge(frames)
    assert set(found) == {"tls_flood"}
    assert found["tls_flood"].title == "TLS renegotiation flood"


def test_connections_that_say_nothing_show_beside_sampled_looking_headers() -> None:
    """Each sends a SYN and one ACK with timestamps: alone of its sort, but not of its connection."""
    rng = Random(5)
    frames = visitors(rng, 60)
    for bot in hosts(rng, 50):
        for _ in range(30):
            frames += connection(rng, bot, 22, [], end="", at=rng.random() * 3)
    assert set(judge(frames)) == {"syn_flood"}


def test_questions_for_coap_resources_in_one_name_tell_that_this_host_reflects() -> None:
    rng = Random(6)
    victims = hosts(rng, 2)
    question = b"\x40\x01\x12\x34\xbb.well-known\x04core"
    frames = []
    for _ in range(600):
        datagram = udp(rng.randrange(1024, 65536), 5683, question)
        frames.append((rng.random() * 4, ethernet(ip(rng.choice(victims), HOST, 17, datagram, ttl=245))))
    assert set(judge(frames)) == {"coap_amplification"}


@pytest.mark.parametrize(("finished", "kinds"), [(False, {"tls_flood"}), (True, set())])
def test_sessions_that_are_closed_before_their_handshake_ends_are_a_flood(
    finished: bool, kinds: set[str]
) -> None:
    rng = Random(7)
    frames: list[Frame] = []
    for bot in hosts(rng, 40):
        for _ in range(12):
            loads = [client_hello(rng)]
            if finished:
                loads.append(b"\x14\x03\x03\0\x01\x01" + rng.randbytes(40))
                loads.append(b"\x17\x03\x03\0\xf0" + rng.randbytes(240))
            frames += connection(rng, bot, 443, loads, answered=3500)
    assert set(judge(frames)) == kinds


def test_one_tool_with_several_methods_for_one_page_is_a_flood() -> None:
    rng = Random(8)
    methods = (b"HEAD", b"OPTIONS", b"GET")
    words = b" / HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: Mozilla/5.0 (Windows NT 6.1)\r\n\r\n"
    assert set(judge(clients(rng, 80, 12, lambda _: rng.choice(methods) + words))) == {"http_flood"}


def test_answers_of_a_single_reflector_are_named_after_its_service() -> None:
    rng = Random(9)
    server = hosts(rng, 1)[0]
    frames = visitors(rng, 40)
    for i in range(8000):
        answer = b"\0\0" + (i % 700).to_bytes(2) + b"\x02\xbc\0\0" + bytes([rng.randrange(256)]) * 1392
        datagram = udp(11211, rng.randrange(1024, 65536), answer)
        frames.append((rng.random() * 4, ethernet(ip(server, HOST, 17, datagram, ttl=50))))
    assert set(judge(frames)) == {"memcached_amplification"}


@pytest.mark.parametrize("kind", ["syn_flood", "dns_amplification"])
def test_a_capture_of_two_dozen_packets_is_enough_where_all_are_alike(kind: str) -> None:
    rng = Random(10)
    frames: list[Frame] = []
    for server in hosts(rng, 25):
        if kind == "syn_flood":
            source = bytes([rng.randrange(1, 224)]) + rng.randbytes(3)
            packet = segment(source, HOST, rng.randrange(65536), 443, "S", seq=rng.getrandbits(31))
        else:
            answer = udp(53, rng.randrange(1024, 65536), dns_answer(rng, "example.org"))
            packet = ethernet(ip(server, HOST, 17, answer, ttl=50))
        frames.append((rng.random() / 100, packet))
    assert set(judge(frames, seconds=0.01)) == {kind}


def test_answers_of_an_unknown_service_are_named_before_their_sources_come_again() -> None:
    rng = Random(11)
    frames = visitors(rng, 10)
    for _ in range(300):
        reflector = bytes([rng.randrange(1, 224)]) + rng.randbytes(3)
        answer = b"~STR" + rng.randbytes(rng.randrange(300, 900))
        datagram = udp(20811, rng.randrange(1024, 65536), answer)
        frames.append(
            (rng.random() / 10, ethernet(ip(reflector, HOST, 17, datagram, ttl=rng.randrange(40, 120))))
        )
    assert set(judge(frames)) == {"udp_amplification"}
