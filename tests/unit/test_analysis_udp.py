"""UDP that was once misread: streams, games' questions, forged packets that look like a protocol's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from analysis_factory import ethernet, ip, udp
from analysis_flows import HOST, Frame, hosts, judge, segment


def datagram(at: float, src: bytes, ports: tuple[int, int], data: bytes, *, ttl: int | None = None) -> Frame:
    return at, ethernet(ip(src, HOST, 17, udp(*ports, data), ttl=ttl or 64 - src[3] % 20))


def forged(rng: Random) -> bytes:
    return bytes([rng.randrange(1, 224)]) + rng.randbytes(3)


@pytest.mark.parametrize("size", [40, 172, 1200])
def test_one_stream_of_random_bytes_is_no_flood(size: int) -> None:
    rng = Random(1)
    peer = hosts(rng, 1)[0]
    frames = [datagram(i / 400, peer, (40_000, 16_384), rng.randbytes(size)) for i in range(1600)]
    assert judge(frames) == {}


def test_one_stream_of_nothing_but_zeros_is_a_flood() -> None:
    rng = Random(2)
    peer = hosts(rng, 1)[0]
    frames = [datagram(i / 400, peer, (40_000, 16_384), bytes(1000)) for i in range(1600)]
    assert set(judge(frames)) == {"udp_flood"}


def test_a_fast_peer_that_is_answered_is_a_talk_and_one_that_repeats_itself_is_not() -> None:
    rng = Random(3)
    peer, client = hosts(rng, 2)
    web = []
    for i in range(60):
        web.append((i / 30, segment(client, HOST, 41_000 + i, 80, "S", seq=i)))
        web.append((i / 30 + 0.01, segment(HOST, client, 80, 41_000 + i, "SA", seq=1, ack=i + 1, ttl=64)))
        web.append((i / 30 + 0.02, segment(client, HOST, 41_000 + i, 80, "A", seq=i + 1, ack=2)))

    def both(say: Callable[[], bytes]) -> list[Frame]:
        there = [datagram(i / 8000, peer, (40_000, 5004), say()) for i in range(8000)]
        return there + [
            (at + 0.0001, ethernet(ip(HOST, peer, 17, udp(5004, 40_000, rng.randbytes(180)), ttl=64)))
            for at, _ in there
        ]

    assert judge(both(lambda: rng.randbytes(180)) + web, seconds=1.0) == {}
    query = b"\xff\xff\xff\xffTSource Engine Query\0"
    assert set(judge(both(lambda: query) + web, seconds=1.0)) == {"udp_flood"}


def test_forged_short_headers_are_no_quic_connections() -> None:
    rng = Random(4)
    frames = [
        datagram(rng.random(), forged(rng), (rng.randrange(1024, 65536), 443),
                 bytes([0x40 | rng.randrange(64)]) + rng.randbytes(rng.randrange(30, 1200)),
                 ttl=rng.randrange(40, 120))
        for _ in range(2000)
    ]  # fmt: skip
    found = judge(frames, seconds=1.0)
    assert set(found) == {"udp_flood"}
    assert found["udp_flood"].spoofed


def invite(rng: Random) -> bytes:
    return b"INVITE sip:9%d@example.org SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1;branch=%s" % (
        rng.randrange(10**8),
        rng.randbytes(6).hex().encode(),
    )


def test_phones_that_call_without_end_are_a_flood_and_phones_that_call_are_not() -> None:
    rng = Random(5)
    phones = hosts(rng, 400)
    calls = [datagram(rng.random(), rng.choice(phones), (5060, 5060), invite(rng)) for _ in range(2000)]
    assert set(judge(calls, seconds=1.0)) == {"udp_flood"}
    once = [datagram(rng.random() * 20, phone, (5060, 5060), invite(rng)) for phone in phones]
    assert judge(once, seconds=20.0) == {}


def test_bots_that_take_a_new_port_for_each_packet_show_among_games() -> None:
    rng = Random(6)
    bots, players = hosts(rng, 200), hosts(rng, 8)
    game = [
        datagram(i / 80, player, (50_000, 27_015),
                 i.to_bytes(4, "little") + rng.randbytes(rng.randrange(30, 110)))
        for player in players
        for i in range(320)
    ]  # fmt: skip
    text = [
        datagram(rng.random() * 4, rng.choice(bots), (rng.randrange(1024, 65536), 7934),
                 b"flood %d " % rng.randrange(9999) * rng.randrange(60, 80))
        for _ in range(500)
    ]  # fmt: skip
    found = judge(game + text)
    assert set(found) == {"udp_flood"}
    assert found["udp_flood"].share == pytest.approx(500 / 3060, abs=0.01)


@pytest.mark.parametrize("several", [False, True], ids=["their port", "random ports"])
def test_a_flood_does_not_count_the_players_beside_it(several: bool) -> None:
    rng, query = Random(31), b"\xff\xff\xff\xffTSource Engine Query\0"
    flood = [
        datagram(i / 500, forged(rng), (rng.randrange(1024, 65_536), port), query, ttl=rng.randrange(40, 60))
        for i, port in enumerate(rng.randrange(1024, 65_536) if several else 27_015 for _ in range(2000))
    ]
    players = [
        datagram(k / 25 + rng.random() / 50, player, (50_000, 27_015), rng.randbytes(rng.randrange(28, 98)))
        for player in hosts(rng, 2 if several else 4)
        for k in range(100)
    ]
    found = judge(flood + players)
    assert set(found) == {"udp_flood"}
    assert found["udp_flood"].share == pytest.approx(2000 / len(flood + players), abs=0.005)


def test_what_looks_like_reports_of_forged_sources_is_a_flood() -> None:
    rng = Random(32)
    discovers = [
        datagram(
            i / 500,
            forged(rng),
            (68, 67),
            b"\1\1\6\0"
            + rng.randbytes(4)
            + bytes(20)
            + rng.randbytes(6)
            + bytes(202)
            + b"\x63\x82\x53\x63\x35\1\1",
            ttl=rng.randrange(40, 60),
        )
        for i in range(2000)
    ]
    assert set(judge(discovers)) == {"udp_flood"}
