"""What the corpus once showed to be judged wrongly."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from analysis_factory import STARTED, ethernet, icmp, ip, make_batch, make_window, tcp, udp
from analysis_flows import HOST, Frame, connection, hosts, judge, segment
from analysis_payloads import client_hello, dns_answer, dns_name

from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline, class_rates
from fwtop.analysis.window.tcp_view import answers_to_probes


def found(
    frames: list[Frame], seconds: float, *, one_in: int = 1, baseline: Baseline | None = None, seed: int = 1
) -> dict[str, float]:
    """Judge one packet in `one_in` of live frames; return kinds and shares."""
    rng = Random(seed)
    kept = sorted(frame for frame in frames if rng.random() * one_in < 1)
    window = make_window(make_batch(kept, weight=float(one_in)), seconds, live=True, started=STARTED)
    context = make_context(window, AdviseConfig(), baseline or Baseline())
    return {one.kind: context.traffic.share(one.rows) for one in find_attacks(context)}


def resets(
    rng: Random, targets: list[bytes], count: int, *, to: int | None, seq: int | None = 0
) -> list[Frame]:
    frames = []
    for i in range(count):
        target = targets[i % len(targets)]
        number = rng.getrandbits(32) if seq is None else seq
        mine = to if to is not None else rng.randrange(32_768, 61_000)
        body = tcp(rng.randrange(1, 65536), mine, 20, seq=number, ack=rng.getrandbits(32), window=0)
        frames.append((3 * i / count, ethernet(ip(target, HOST, 6, body, ttl=64 - target[3] % 20))))
    return frames


@pytest.mark.parametrize("targets", [1, 8, 200])
def test_answers_to_a_scan_that_this_host_makes_are_no_attack(targets: int) -> None:
    rng = Random(1)
    scanned = hosts(rng, targets)
    frames = resets(rng, scanned, 4000, to=41_640)
    for _ in range(200):  # open ports
        target = rng.choice(scanned)
        head = segment(target, HOST, rng.randrange(1, 65536), 41_640, "SA", seq=rng.getrandbits(32))
        frames.append((rng.random() * 3, head))
    assert found(frames, 3.0) == {}
    assert found(frames, 3.0, one_in=10) == {}
    assert judge(frames, seconds=3.0) == {}


@pytest.mark.parametrize(("targets", "kinds"), [(3, set()), (200, {"rst_flood"})])
def test_refusals_of_the_few_hosts_to_which_this_host_tries_to_connect_are_no_attack(
    targets: int, kinds: set[str]
) -> None:
    """nmap -sT asks each port from a port of its own."""
    rng = Random(1)
    assert set(judge(resets(rng, hosts(rng, targets), 30_000, to=None), seconds=3.0)) == kinds


@pytest.mark.parametrize(
    ("here", "asked", "kinds"),
    [(41_640, HOST, set()), (None, HOST, {"icmp_flood"}), (41_640, bytes(4), {"icmp_flood"})],
    ids=["scan", "from any port", "asked by another"],
)
def test_errors_of_closed_ports_that_this_host_scans_are_no_attack(
    here: int | None, asked: bytes, kinds: set[str]
) -> None:
    rng, target = Random(5), bytes([81, 2, 69, 5])
    frames = []
    for port in range(2_000):
        mine = here if here is not None else rng.randrange(32_768, 61_000)
        probe = ip(asked, target, 17, udp(mine, port, b""), ttl=40)
        frames.append((3 * port / 2_000, ethernet(ip(target, HOST, 1, icmp(3, 3, probe), ttl=60))))
    assert set(found(frames, 3.0)) == kinds


@pytest.mark.parametrize(
    ("service", "lowest", "kinds"),
    [(53, 1_024, set()), (123, 1_024, set()), (1812, 1_024, set()), (53, 1, {"port_scan"})],
    ids=["resolver", "time", "RADIUS", "scanner that sends from port 53"],
)
def test_answers_of_a_server_that_this_host_asks_from_drawn_ports_are_no_scan(
    service: int, lowest: int, kinds: set[str]
) -> None:
    rng, server = Random(6), bytes([81, 2, 69, 5])
    frames = []
    for at in range(300):
        here = rng.randrange(lowest, 65_536 if lowest > 1 else 1_024)
        body = udp(service, here, rng.randbytes(40))
        frames.append((3 * at / 300, ethernet(ip(server, HOST, 17, body, ttl=60))))
    assert set(found(frames, 3.0)) == kinds


@pytest.mark.parametrize(("to", "seq"), [(80, 0), (41_640, None)])
def test_resets_to_a_service_or_with_drawn_numbers_answer_no_scan(to: int, seq: int | None) -> None:
    rng = Random(2)
    assert set(found(resets(rng, hosts(rng, 40), 6000, to=to, seq=seq), 3.0)) == {"rst_flood"}


@pytest.mark.parametrize("weight", [1.0, 10.0])
def test_forged_resets_answer_no_scan(weight: float) -> None:
    rng = Random(3)
    forged = [rng.randbytes(4) for _ in range(4000)]
    batch = make_batch(resets(rng, forged, 4000, to=41_640), weight=weight)
    context = make_context(make_window(batch, 3.0, live=True), AdviseConfig(), Baseline())
    assert not answers_to_probes(context.traffic).any()


def pieces(rng: Random, at: float, src: bytes, size: int, *, whole: bool = True) -> list[Frame]:
    body, number = udp(800, 2049, rng.randbytes(size)), rng.getrandbits(16)
    cuts, end = range(0 if whole else 1480, len(body), 1480), len(body)
    made = []
    for cut in cuts:
        more, piece = cut + 1480 < end, body[cut : cut + 1480]
        packet = ip(src, HOST, 17, piece, ttl=60, ip_id=number, offset=cut, more=more)
        made.append((at, ethernet(packet)))
    return made


@pytest.mark.parametrize("one_in", [1, 2, 5])
def test_whole_datagrams_in_fragments_are_no_flood_however_sampled(one_in: int) -> None:
    rng = Random(4)
    client = hosts(rng, 1)[0]
    storage = [one for i in range(3000) for one in pieces(rng, i / 1000, client, 8300)]
    assert found(storage, 3.0, one_in=one_in) == {}
    headless = [one for i in range(3000) for one in pieces(rng, i / 1000, client, 8300, whole=False)]
    assert set(found(headless, 3.0, one_in=one_in)) == {"fragment_flood"}


def test_clients_of_a_time_server_that_asked_once_in_a_short_window_are_no_flood() -> None:
    rng = Random(5)
    data = b"\x23\0\x06\x20" + bytes(44)
    clients = hosts(rng, 900)
    frames = [
        (rng.random(), ethernet(ip(one, HOST, 17, udp(9000 + one[3], 123, data), ttl=64 - one[3] % 20)))
        for one in clients
    ]
    assert found(frames, 1.0) == {}


def test_amplified_answers_are_compared_with_what_usually_comes_from_their_port() -> None:
    rng = Random(6)
    baseline, peer = Baseline(), hosts(rng, 1)[0]

    def stream(pps: int, seconds: float) -> list[Frame]:
        return [
            (
                i / pps,
                ethernet(ip(peer, HOST, 17, udp(40_000, 5201, i.to_bytes(4) + rng.randbytes(900)), ttl=55)),
            )
            for i in range(int(pps * seconds))
        ]

    for _ in range(6):
        packets = make_batch(stream(2000, 1.0))
        baseline.keep_rates(class_rates(packets, 1.0), 1.0)
        baseline.keep_rows(packets)
    assert baseline.ready
    servers = hosts(rng, 300)
    bodies = [udp(53, 4000, dns_answer(rng, "a.example")) for _ in range(4000)]
    answers = [
        (rng.random() * 2, ethernet(ip(rng.choice(servers), HOST, 17, body, ttl=50))) for body in bodies
    ]
    assert set(found(answers + stream(2000, 2.0), 2.0, baseline=baseline)) == {"dns_amplification"}


def test_bots_that_ask_for_the_same_few_names_without_end_are_a_flood() -> None:
    rng = Random(7)
    bots = hosts(rng, 100)
    names = [dns_name(name) for name in ("www.shop.example", "api.shop.example", "mail.shop.example")]

    def ask(at: float, src: bytes) -> Frame:
        data = rng.randbytes(2) + b"\1\0\0\1\0\0\0\0\0\0" + rng.choice(names) + b"\0\1\0\1"
        body = udp(rng.randrange(1024, 65536), 53, data)
        return at, ethernet(ip(src, HOST, 17, body, ttl=64 - src[3] % 20))

    flood = [ask(rng.random() * 3, rng.choice(bots)) for _ in range(7000)]
    assert set(found(flood, 3.0)) == {"dns_query_flood"}
    patient = [ask(rng.random() * 3, one) for one in hosts(rng, 1200)]
    assert found(patient, 3.0) == {}


def test_a_flood_of_lone_acks_from_hundreds_of_bots_is_named_without_a_baseline() -> None:
    rng = Random(8)
    bots = hosts(rng, 500)
    frames = [
        (
            rng.random() * 3,
            segment(
                rng.choice(bots), HOST, rng.randrange(1024, 65536), 80, "A",
                seq=rng.getrandbits(32), ack=rng.getrandbits(32),
            ),
        )
        for _ in range(30_000)
    ]  # fmt: skip
    assert set(found(frames, 3.0, one_in=6)) == {"ack_flood"}


def test_handshakes_that_are_broken_off_at_once_are_a_flood_within_a_second() -> None:
    rng = Random(10)
    bots, crowd = hosts(rng, 30), hosts(rng, 250)
    flood = [
        frame
        for _ in range(350)
        for frame in connection(
            rng, rng.choice(bots), 443, [client_hello(rng)], end="R", at=rng.random() * 0.9, answered=0
        )
    ]
    assert set(found(flood, 1.0)) == {"tls_flood"}
    records = [b"\x17\x03\x03\x01\x2c" + bytes(200)] * 3
    visits = [
        frame
        for one in crowd
        for frame in connection(rng, one, 443, [client_hello(rng), *records], at=rng.random() * 0.5)
    ]
    assert found(visits, 1.0) == {}


def test_the_number_of_sources_is_estimated_from_those_seen_once_and_twice() -> None:
    rng = Random(9)
    every = hosts(rng, 1000)
    frames = [(rng.random(), segment(rng.choice(every), HOST, 5000, 80, "S", seq=i)) for i in range(500)]
    context = make_context(make_window(make_batch(frames), 1.0), AdviseConfig(), Baseline())
    features = context.features(np.arange(500))
    assert features.sources < 420
    assert 700 < features.likely_sources < 1400
