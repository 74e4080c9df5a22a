"""Rules that look at how TCP segments follow each other, and what only looks like an attack."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from analysis_flows import HOST, OPTIONS, Frame, connection, hosts, judge, segment, visitors


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


def test_data_of_all_sizes_on_many_connections_of_each_source_is_a_flood_and_logs_are_none() -> None:
    rng = Random(3)
    bots, shippers = hosts(rng, 8), hosts(rng, 50)
    junk = [
        frame
        for bot in bots * 6
        for frame in connection(
            rng, bot, 7000, [rng.randbytes(rng.randrange(20, 900)) for _ in range(90)], gap=0.02, answered=0
        )
    ]
    lines = [
        frame
        for shipper in shippers
        for frame in connection(
            rng, shipper, 601, [b"<134>1 web app[%d]: GET /" % k + b"x" * (k % 50) for k in range(40)],
            gap=0.05, answered=0,
        )
    ]  # fmt: skip
    assert set(judge(junk)) == {"ack_flood"}
    assert judge(lines) == {}


def test_the_same_byte_again_and_again_on_many_connections_is_a_flood() -> None:
    rng, frames = Random(4), list[Frame]()
    for bot in hosts(rng, 60):
        frames += connection(rng, bot, 80, [b"\0"] * 70, gap=0.05, at=0.0, answered=0)
    assert set(judge(frames + visitors(rng, 20))) == {"ack_flood"}


def test_sessions_that_forged_sources_pretend_to_have_are_a_flood() -> None:
    rng, frames = Random(5), list[Frame]()
    for _ in range(600):
        source, sport = bytes([rng.randrange(1, 224)]) + rng.randbytes(3), rng.randrange(1024, 65_536)
        at, seq, ack, ttl = (
            rng.random() * 3.5,
            rng.getrandbits(31),
            rng.getrandbits(31),
            rng.randrange(40, 60),
        )
        said = [("S", 0, 0), *(("A", 1, ack + 1448 * k) for k in range(6)), ("R", 1, 0)]
        for k, (flags, step, number) in enumerate(said):
            one = segment(source, HOST, sport, 80, flags, seq=seq + step, ack=number, ttl=ttl)
            frames.append((at + 0.0004 * k, one))
    found = judge(frames + visitors(rng, 30))
    assert set(found) == {"syn_flood"}
    assert found["syn_flood"].title == "Flood of fake TCP sessions"
    assert found["syn_flood"].spoofed


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
