"""Rules that look at how packets follow each other; frames are built as tools and hosts send them."""

from __future__ import annotations

import struct
from random import Random

import numpy as np
import pytest
from analysis_factory import FLAGS, ethernet, ip, tcp, udp
from analysis_flows import HOST, OPTIONS, hosts, judge, segment, visitors


def test_monlist_in_one_name_tells_that_this_host_reflects() -> None:
    rng = Random(11)
    victim, monlist = hosts(rng, 1)[0], b"\x17\0\x03\x2a" + bytes(44)
    frames = [
        (rng.random() * 4, ethernet(ip(victim, HOST, 17, udp(rng.choice((80, 443)), 123, monlist), ttl=241)))
        for _ in range(1_000)
    ]
    answers = [
        (
            at + 0.001,
            ethernet(ip(HOST, victim, 17, udp(123, 80, b"\xd7\0\x03\x2a" + rng.randbytes(436)), ttl=64)),
        )
        for at, _ in frames
        for _ in range(4)
    ]
    for seen in (frames, frames + answers):
        found = judge([*seen, *visitors(rng, 10)])
        assert set(found) == {"ntp_amplification"}
        assert found["ntp_amplification"].spoofed
        assert found["ntp_amplification"].share > 0.7
    once = [
        (i * 0.04, ethernet(ip(client, HOST, 17, udp(4000, 123, monlist), ttl=50)))
        for i, client in enumerate(hosts(rng, 90))
    ]
    assert "ntp_amplification" not in judge([*once, *visitors(rng, 60)])


def test_esp_of_peers_counts_up_and_that_of_a_flood_does_not() -> None:
    rng = Random(12)
    peers = [
        (
            i * 0.01,
            ethernet(ip(peer, HOST, 50, struct.pack("!II", 7 + peer[3], i + 1) + rng.randbytes(600), ttl=55)),
        )
        for peer in hosts(rng, 30)
        for i in range(60)
    ]
    assert judge(peers) == {}
    flood = [
        (i * 0.001, ethernet(ip(peer, HOST, 50, rng.randbytes(608), ttl=55)))
        for i, peer in enumerate(hosts(rng, 30) * 60)
    ]
    assert set(judge(flood)) == {"esp_flood"}


def test_esp_of_two_networks_behind_one_address_is_two_associations() -> None:
    rng = Random(12)
    gateway = hosts(rng, 1)[0]
    frames = [
        (
            i * 0.002 + rng.random() * 0.002,
            ethernet(ip(gateway, HOST, 50, struct.pack("!II", spi, first + i) + rng.randbytes(size), ttl=55)),
        )
        for spi, first, size in ((7, 500, 92), (8, 90_000, 1400))
        for i in range(1_500)
    ]
    assert judge(frames) == {}


def test_a_capture_that_is_a_thin_sample_of_web_traffic_shows_no_flood() -> None:
    rng = Random(13)
    frames = visitors(rng, 4_000)
    thin = [frame for frame in frames if rng.random() < 0.03]
    assert judge(thin) == {}
    flood = [
        (
            rng.random() * 4,
            segment(
                rng.randbytes(4),
                HOST,
                rng.randrange(1024, 65536),
                443,
                "A",
                seq=rng.randrange(1 << 32),
                ttl=99,
            ),
        )
        for _ in range(3_000)
    ]
    found = judge([*thin, *flood])
    assert set(found) == {"ack_flood"}
    assert found["ack_flood"].spoofed


def test_flags_beyond_the_snap_length_are_told_by_the_headers_size() -> None:
    rng = Random(14)
    frames = []
    for _ in range(1_000):
        src = b"\x2a\x02" + rng.randbytes(14)
        body = tcp(
            rng.randrange(1024, 65536), 443, FLAGS["S"], seq=rng.randrange(1 << 32), ack=0, options=OPTIONS
        )
        frames.append((rng.random() * 4, ethernet(ip(src, b"\x2a\x02" + bytes(14), 6, body, ttl=55))))
    assert set(judge(frames, snap=64)) == {"syn_flood"}


def test_names_that_nobody_made_are_a_dns_query_flood() -> None:
    rng = Random(15)
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789"

    def label() -> bytes:
        return bytes(rng.choice(letters) for _ in range(11))

    frames = []
    for client in hosts(rng, 600) * 3:
        name = b"".join(bytes([len(part)]) + part for part in (label(), label(), b"com")) + b"\0"
        question = rng.randbytes(2) + b"\x01\0\0\x01\0\0\0\0\0\0" + name + b"\0\x01\0\x01"
        frames.append(
            (
                rng.random() * 4,
                ethernet(ip(client, HOST, 17, udp(rng.randrange(1024, 65536), 53, question), ttl=50)),
            )
        )
    assert set(judge(frames)) == {"dns_query_flood"}


def test_telescopes_and_link_discovery_see_no_attack() -> None:
    rng = Random(16)
    probes = [
        (
            rng.random() * 60,
            segment(
                rng.randbytes(4),
                bytes([198, 51]) + rng.randbytes(2),
                4000,
                rng.choice((23, 445)),
                "S",
                seq=1,
                ttl=50,
            ),
        )
        for _ in range(1_500)
    ]
    assert judge(probes, seconds=60.0) == {}
    group = bytes.fromhex("ff0200000000000000000001ff")
    discovery = [
        (
            rng.random() * 60,
            ethernet(
                ip(
                    b"\xfe\x80" + rng.randbytes(14),
                    group + rng.randbytes(3),
                    58,
                    b"\x87" + bytes(23),
                    ttl=255,
                )
            ),
        )
        for _ in range(600)
    ]
    assert judge(discovery, seconds=60.0) == {}


def test_two_way_captures_count_only_what_arrived() -> None:
    rng = Random(17)
    frames, answers = [], []
    for _ in range(1_500):
        client, sport, seq = rng.randbytes(4), rng.randrange(1024, 65536), rng.randrange(1 << 32)
        at = rng.random() * 3
        frames.append((at, segment(client, HOST, sport, 443, "S", seq=seq, ttl=200)))
        answers.append((at + 0.001, segment(HOST, client, 443, sport, "SA", seq=1, ack=seq + 1, ttl=64)))
        if rng.random() < 0.1:  # somebody lives there, and never asked for that
            frames.append((at + 0.1, segment(client, HOST, sport, 443, "R", seq=seq + 1, ttl=200)))
    found = judge([*frames, *answers])
    assert set(found) == {"syn_flood"}
    assert found["syn_flood"].share == pytest.approx(1.0)
    assert np.isclose(found["syn_flood"].pps, len(frames) / 4.0)


def test_a_client_that_tries_some_closed_ports_is_no_syn_flood() -> None:
    rng = Random(6)
    source = hosts(rng, 1)[0]
    tries = [
        (port / 80, segment(source, HOST, 40_000 + port, 9000 + port, "S", seq=port, options=OPTIONS))
        for port in range(31)
    ]
    assert "syn_flood" not in judge(tries, seconds=0.4)


@pytest.mark.parametrize(("answers", "kinds"), [(True, set()), (False, {"udp_flood"})])
def test_a_peer_that_is_answered_packet_for_packet_is_a_talk(answers: bool, kinds: set[str]) -> None:
    """One source, one length, random bytes, 1,800 a second: a talk where it is answered, else a flood."""
    rng = Random(8)
    peer = bytes([91, 3, 2, 1])
    frames = []
    for i in range(7200):
        at = i / 1800
        there = udp(40123, 5004, rng.randbytes(180))
        frames.append((at, ethernet(ip(peer, HOST, 17, there, ttl=52))))
        if answers:
            back = udp(5004, 40123, rng.randbytes(180))
            frames.append((at + 0.001, ethernet(ip(HOST, peer, 17, back, ttl=64))))
    # What tells this host from others in a capture: more than one peer
    for i in range(40):
        other = hosts(rng, 1)[0]
        frames.append((i / 10, segment(other, HOST, 41000 + i, 80, "S", seq=i, options=OPTIONS)))
        frames.append((i / 10 + 0.01, segment(HOST, other, 80, 41000 + i, "SA", seq=1, ack=i + 1, ttl=64)))
        frames.append((i / 10 + 0.02, segment(other, HOST, 41000 + i, 80, "A", seq=i + 1, ack=2)))
    assert set(judge(frames)) == kinds


@pytest.mark.parametrize(("sources", "count", "lasts"), [(1, 2500, 0.2), (3, 3000, 0.5), (5, 4000, 0.7)])
def test_syns_to_random_ports_from_random_ports_are_a_flood_however_short(
    sources: int, count: int, lasts: float
) -> None:
    rng = Random(11)
    bots = hosts(rng, sources)
    frames = []
    for _ in range(count):
        own, port = rng.randrange(65536), rng.randrange(65536)
        syn = segment(rng.choice(bots), HOST, own, port, "S", seq=rng.randrange(1 << 32), options=OPTIONS)
        frames.append((rng.random() * lasts, syn))
    assert set(judge(frames, seconds=lasts)) == {"syn_flood"}


@pytest.mark.parametrize("connects", [False, True])
def test_a_fast_scan_is_no_flood(connects: bool) -> None:
    """nmap keeps its own port; who scans by connecting has ports of the system's range."""
    rng = Random(12)
    scanner = hosts(rng, 1)[0]
    frames = []
    for i, port in enumerate(rng.sample(range(1, 65536), 2500)):
        own = 32_768 + i if connects else 54_321
        frames.append((i / 2500, segment(scanner, HOST, own, port, "S", seq=rng.randrange(1 << 32))))
    assert set(judge(frames, seconds=1.0)) == {"port_scan"}
