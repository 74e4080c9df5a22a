"""Rules that look at how packets follow each other; frames are built as tools and hosts send them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from advise_factory import FLAGS, ethernet, ip, make_batch, make_tables, make_window, tcp, udp

from fwtop.advise.advisor import Advisor
from fwtop.model.snapshot import Attack

HOST = bytes([10, 10, 10, 10])
OPTIONS = bytes.fromhex("020405b40402080a") + bytes(8) + bytes.fromhex("01030307")
STAMPS = bytes.fromhex("0101080a") + bytes(8)
Frame = tuple[float, bytes]


def judge(frames: list[Frame], *, snap: int = 216, seconds: float = 4.0) -> dict[str, Attack]:
    frames = sorted(frames, key=lambda frame: frame[0])
    window = make_window(make_batch(frames, snap=snap), seconds)
    attacks = Advisor().judge(window, make_tables(window)).attacks
    assert sum(attack.share for attack in attacks) <= 1.0 + 1e-9
    return {attack.kind: attack for attack in attacks}


def hosts(rng: Random, count: int) -> list[bytes]:
    """Addresses that cluster in networks in use, as those of real hosts do."""
    networks = [
        bytes([rng.choice((31, 46, 62, 78, 81, 88, 91, 178, 185)), rng.randrange(256)]) for _ in range(40)
    ]
    return [rng.choice(networks) + rng.randbytes(2) for _ in range(count)]


def segment(
    src: bytes, dst: bytes, sport: int, dport: int, flags: str, *, seq: int, ack: int = 0, data: bytes = b"",
    options: bytes = b"", ttl: int | None = None,
) -> bytes:  # fmt: skip
    bits = sum(FLAGS[flag] for flag in flags)
    body = tcp(sport, dport, bits, seq=seq & 0xFFFFFFFF, ack=ack & 0xFFFFFFFF, options=options, data=data)
    return ethernet(ip(src, dst, 6, body, ttl=ttl or 64 - src[3] % 20))


def connection(
    rng: Random, client: bytes, dport: int, loads: list[bytes], *, gap: float = 0.05, end: str = "FA",
    at: float | None = None, answered: int = 1000,
) -> list[Frame]:  # fmt: skip
    """What a server gets of a connection; `answered` bytes come back for each load."""
    sport, seq, ack = rng.randrange(32768, 61000), rng.randrange(1 << 32), rng.randrange(1 << 32)
    now = rng.random() * 2 if at is None else at
    frames = [(now, segment(client, HOST, sport, dport, "S", seq=seq, options=OPTIONS))]
    seq += 1
    frames.append((now + 0.02, segment(client, HOST, sport, dport, "A", seq=seq, ack=ack, options=STAMPS)))
    for load in loads:
        now += gap
        frames.append(
            (now, segment(client, HOST, sport, dport, "PA", seq=seq, ack=ack, data=load, options=STAMPS))
        )
        seq, ack = seq + len(load), ack + answered
        if answered:
            frames.append(
                (now + 0.01, segment(client, HOST, sport, dport, "A", seq=seq, ack=ack, options=STAMPS))
            )
    if end:
        frames.append((now + gap, segment(client, HOST, sport, dport, end, seq=seq, ack=ack, options=STAMPS)))
    return frames


def visitors(rng: Random, count: int) -> list[Frame]:
    frames: list[Frame] = []
    for client in hosts(rng, count):
        loads = [
            b"\x17\x03\x03\x01\x2c" + rng.randbytes(rng.randrange(100, 400))
            for _ in range(rng.randrange(2, 9))
        ]
        frames += connection(rng, client, 443, loads)
    return frames


def stomp(rng: Random, step: int) -> list[Frame]:
    frames: list[Frame] = []
    for client in hosts(rng, 60):
        sport, seq, ack = rng.randrange(1024, 65535), rng.randrange(1 << 32), rng.randrange(1 << 32)
        frames.append((0.0, segment(client, HOST, sport, 80, "S", seq=seq, options=OPTIONS)))
        frames.append((0.05, segment(client, HOST, sport, 80, "A", seq=seq + 1, ack=ack)))
        for i in range(50):
            load = rng.randbytes(700)
            frames.append(
                (
                    0.1 + i * 0.02,
                    segment(client, HOST, sport, 80, "PA", seq=seq + 1 + i * step, ack=ack, data=load),
                )
            )
    return frames


@pytest.mark.parametrize("step", [700, 1], ids=["advancing", "counting_packets"])
@pytest.mark.parametrize("snap", [64, 216])
def test_stomp_is_an_ack_flood_although_its_connections_are_real(step: int, snap: int) -> None:
    rng = Random(1)
    found = judge([*stomp(rng, step), *visitors(rng, 30)], snap=snap)
    assert set(found) == {"ack_flood"}
    assert found["ack_flood"].share > 0.8
    assert not found["ack_flood"].spoofed


def test_uploads_and_sensors_are_no_stomp() -> None:
    rng = Random(2)
    frames = visitors(rng, 20)
    for client in hosts(rng, 12):
        frames += connection(
            rng, client, 443, [b"\x17\x03\x03\x05\xa3" + rng.randbytes(1443)] * 60, gap=0.01, answered=0
        )
    for client in hosts(rng, 40):
        frames += connection(rng, client, 1883, [rng.randbytes(40) for _ in range(12)], gap=0.2, answered=4)
    assert judge(frames) == {}


def reflected(rng: Random, flags: str, count: int, servers: list[bytes]) -> list[Frame]:
    frames = []
    for _ in range(count):
        server, options = rng.choice(servers), OPTIONS[:4] if "S" in flags else b""
        port, here = rng.choice((80, 443)), rng.randrange(1024, 65536)
        seq, ack = rng.randrange(1 << 32), rng.randrange(1 << 32)
        frames.append(
            (rng.random() * 4, segment(server, HOST, port, here, flags, seq=seq, ack=ack, options=options))
        )
    return frames


def test_resets_of_closed_ports_belong_to_the_syn_ack_reflection() -> None:
    rng = Random(3)
    servers = hosts(rng, 800)
    found = judge(
        [*reflected(rng, "SA", 2_000, servers), *reflected(rng, "RA", 900, servers), *visitors(rng, 20)]
    )
    assert set(found) == {"syn_ack_reflection"}
    total = 2_900 + len(visitors(Random(0), 20))
    assert found["syn_ack_reflection"].share == pytest.approx(2_900 / total, abs=0.05)
    assert not found["syn_ack_reflection"].spoofed


def test_resets_from_other_ports_are_a_flood_of_their_own() -> None:
    rng = Random(4)
    resets = [
        (
            rng.random() * 4,
            segment(rng.randbytes(4), HOST, rng.randrange(2000, 65000), 22, "R", seq=1, ttl=77),
        )
        for _ in range(2_000)
    ]
    found = judge([*reflected(rng, "SA", 2_000, hosts(rng, 800)), *resets])
    assert set(found) == {"syn_ack_reflection", "rst_flood"}
    assert found["rst_flood"].spoofed
    assert found["rst_flood"].share == pytest.approx(0.5, abs=0.03)


PAGE = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n<html><iframe src='http://10.10.34.34/'></iframe>"


@pytest.mark.parametrize("snap", [64, 216])
def test_block_pages_without_handshake_are_middlebox_reflection(snap: int) -> None:
    rng = Random(5)
    boxes, frames = hosts(rng, 200), visitors(rng, 20)
    for _ in range(1_500):
        box, at, seq, ack = (
            rng.choice(boxes),
            rng.random() * 4,
            rng.randrange(1 << 32),
            rng.randrange(1 << 32),
        )
        here = rng.choice((80, rng.randrange(1024, 65536)))
        frames.append(
            (at, segment(box, HOST, 80, here, rng.choice(("PA", "FPA")), seq=seq, ack=ack, data=PAGE))
        )
        frames.append((at + 0.001, segment(box, HOST, 80, here, "RA", seq=seq + len(PAGE), ack=ack)))
    found = judge(frames, snap=snap)
    assert set(found) == {"middlebox_amplification"}
    assert found["middlebox_amplification"].share == pytest.approx(3_000 / len(frames), abs=0.03)
    assert not found["middlebox_amplification"].spoofed


def test_pages_that_somebody_reads_are_no_reflection() -> None:
    rng = Random(6)
    frames: list[Frame] = []
    for server in hosts(rng, 30):
        here, seq, ack = rng.randrange(32768, 61000), rng.randrange(1 << 32), rng.randrange(1 << 32)
        for i in range(25):
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + rng.randbytes(300)
            frames.append((i * 0.1, segment(server, HOST, 80, here, "PA", seq=seq, ack=ack, data=answer)))
            seq, ack = seq + len(answer), ack + 120
    assert judge(frames) == {}


def test_connections_that_say_nothing_are_a_flood_and_health_checks_are_none() -> None:
    rng = Random(7)
    frames: list[Frame] = []
    for client in hosts(rng, 50):
        for _ in range(12):
            frames += connection(rng, client, 443, [], end="RA")
    found = judge([*frames, *visitors(rng, 20)])
    assert set(found) == {"syn_flood"}
    assert found["syn_flood"].title == "TCP connection flood"
    assert not found["syn_flood"].spoofed
    checks: list[Frame] = []
    for client in hosts(rng, 3):
        for i in range(20):
            checks += connection(rng, client, 443, [], end="RA", at=i * 0.2)
    assert judge([*checks, *visitors(rng, 40)]) == {}


def crumbs(rng: Random, head: bytes, crumb: Callable[[], bytes]) -> list[Frame]:
    frames: list[Frame] = []
    for client in hosts(rng, 20) * 5:
        frames += connection(
            rng, client, 80, [head, *(crumb() for _ in range(5))], gap=6.0, end="", answered=0
        )
    return frames


def test_requests_in_crumbs_are_a_slow_http_attack_and_websockets_are_none() -> None:
    rng = Random(8)
    post = b"POST /form HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100000\r\n\r\n"
    rudy = crumbs(rng, post, lambda: rng.choice((b"a", b"b")))
    found = judge([*rudy, *visitors(rng, 100)], seconds=40.0)
    assert set(found) == {"http_flood"}
    assert found["http_flood"].title == "Slow HTTP attack"
    upgrade = b"GET /ws HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\n\r\n"
    chat = crumbs(rng, upgrade, lambda: b"\x81\x88" + rng.randbytes(12))
    assert judge([*chat, *visitors(rng, 100)], seconds=40.0) == {}


def test_segments_full_of_tiny_tls_records_are_an_http_flood_and_single_ones_are_none() -> None:
    rng = Random(9)

    def records(count: int) -> bytes:
        return b"".join(b"\x17\x03\x03\0\x2a" + rng.randbytes(42) for _ in range(count))

    def clients(count: int) -> list[Frame]:
        frames: list[Frame] = []
        for client in hosts(rng, 15):
            frames += connection(
                rng, client, 443, [records(count) for _ in range(150)], gap=0.01, answered=30
            )
        return frames

    assert set(judge([*clients(12), *visitors(rng, 20)])) == {"http_flood"}
    assert judge([*clients(1), *visitors(rng, 20)]) == {}


def test_requests_that_sources_repeat_are_a_flood_and_a_balancer_is_none() -> None:
    rng = Random(10)
    login = b"POST /login.php HTTP/1.1\r\nHost: a.example\r\nContent-Length: 40\r\n\r\n"
    flood: list[Frame] = []
    for client in hosts(rng, 40):
        for _ in range(4):
            flood += connection(rng, client, 80, [login] * 10)
    assert set(judge([*flood, *visitors(rng, 20)], snap=110)) == {"http_flood"}
    balanced: list[Frame] = []
    for client in hosts(rng, 3):
        for _ in range(12):
            asks = [
                b"GET /p/%d HTTP/1.1\r\nHost: a.example\r\nUser-Agent: B/%d\r\n\r\n"
                % (rng.randrange(400), rng.randrange(60))
                for _ in range(40)
            ]
            balanced += connection(rng, client, 80, asks)
    assert judge(balanced) == {}


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
    """One source, one length, random bytes, 450 a second: a tunnel where this host answers, else a flood."""
    rng = Random(8)
    peer = bytes([91, 3, 2, 1])
    frames = []
    for i in range(1800):
        at = i / 450
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
