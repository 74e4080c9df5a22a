"""What the evidence says of an attack's contents and time, as an expert would: and nothing that isn't so."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from analysis_factory import ethernet, ip, make_batch, make_tables, make_window, tcp, udp

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Traffic
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.snapshot import Incident


def _evidence(packets: list[bytes]) -> list[str]:
    """Judge packets at 1,000 a second; return all sentences."""
    frames = [(at / 1000, ethernet(packet)) for at, packet in enumerate(packets)]
    window = make_window(make_batch(frames), len(frames) / 1000)
    return [line for one in Advisor().judge(window, make_tables(window)).attacks for line in one.evidence]


def _datagram(rng: Random, dport: int, data: bytes) -> bytes:
    source = bytes([rng.randrange(20, 120)]) + rng.randbytes(3)
    body = udp(rng.randrange(1024, 65_000), dport, data)
    return ip(source, bytes([10, 0, 0, 9]), 17, body, ttl=rng.randrange(40, 60))


def test_quic_floods_say_version_and_connection_id_lengths() -> None:
    rng = Random(4)
    start = b"\xc3\0\0\0\x01\x08"
    quic = [_datagram(rng, 443, start + rng.randbytes(8) + b"\5" + rng.randbytes(900)) for _ in range(1500)]
    ids = "connection ids of 8 (destination) and 5 bytes (source)"
    assert f"100 % have long headers of QUIC version 1 and {ids}" in _evidence(quic)
    noise = _evidence([_datagram(rng, 443, rng.randbytes(900)) for _ in range(1500)])
    assert noise
    assert not [line for line in noise if "QUIC" in line]


@pytest.mark.parametrize(
    ("room", "sentence"),
    [(4096, "100 % accept answers of up to 4,096 bytes (EDNS)"), (0, "100 % have no EDNS")],
)
def test_floods_of_questions_say_what_answers_they_have_room_for(room: int, sentence: str) -> None:
    rng = Random(5)
    option = b"\0\0\x29" + room.to_bytes(2, "big") + bytes(6) if room else b""
    head = b"\1\0\0\1\0\0\0\0\0" + bytes([1 if room else 0])
    question = b"\x03big\x07example\x03org\0\0\xff\0\1"
    packets = [_datagram(rng, 53, rng.randbytes(2) + head + question + option) for _ in range(1500)]
    assert sentence in _evidence(packets)


def test_ipv6_is_not_said_to_have_an_ip_id() -> None:
    rng = Random(6)
    packets = []
    for _ in range(1500):
        body = tcp(rng.randrange(1024, 65_000), 443, 2, seq=rng.getrandbits(31), ack=0)
        source, target = b"\x2a\2" + rng.randbytes(14), b"\x20\1\x0d\xb8" + bytes(11) + b"\7"
        packets.append(ip(source, target, 6, body, ttl=50))
    evidence = _evidence(packets)
    assert evidence
    assert not [line for line in evidence if "IP id" in line]


def _waves(*items: tuple[float, bytes]) -> dict[str, Incident]:
    """Judge 60 s of a capture in which packets come at 200 a second for 10 s, each from its time on."""
    rng = Random(7)
    frames = []
    for begin, payload in items:
        port = 80 if not payload else 27015
        for number in range(2000):
            packet = _datagram(rng, port, payload)
            if not payload:
                segment = tcp(
                    rng.randrange(1024, 65_000), port, 2, seq=rng.getrandbits(31), ack=0, window=512
                )
                packet = ip(packet[12:16], bytes([10, 0, 0, 9]), 6, segment, ttl=packet[8])
            frames.append((begin + number / 200, ethernet(packet)))
    alone = ethernet(ip(bytes([20, 1, 1, 1]), bytes([10, 0, 0, 9]), 17, udp(5, 6, b""), ttl=60))
    frames += [(0.0, alone), (60.0, alone)]
    frames.sort(key=lambda frame: frame[0])
    window = make_window(make_batch(frames), 60.0)
    return {attack.kind: attack for attack in Advisor().judge(window, make_tables(window)).attacks}


def test_a_capture_tells_onset_peak_end_and_change_of_vector() -> None:
    found = _waves((5.0, b"pulse pulse"), (15.0, b""))
    first, second = found["udp_flood"], found["syn_flood"]
    assert (first.ended or 0) - first.since == pytest.approx(10, abs=0.1)
    assert second.since - first.since == pytest.approx(10, abs=0.1)
    assert (first.pps, first.peak_pps) == (pytest.approx(33, abs=1), pytest.approx(200, abs=5))
    assert "its peak was 200 packets/s" in first.evidence
    assert "it replaced UDP flood: the attacker changed the vector" in second.evidence
    assert any(line.startswith("it ended at 22:13:") for line in first.evidence)


def test_a_capture_tells_pulses_and_what_is_still_on() -> None:
    attack = _waves((5.0, b"pulse pulse"), (25.0, b"pulse pulse"), (49.9, b"pulse pulse"))["udp_flood"]
    assert "it comes in pulses: 3 so far" in attack.evidence
    assert attack.ended is None


@pytest.mark.parametrize(("sources", "said"), [(5000, "at least 1,"), (10, " from 10 sources")])
def test_sampled_floods_say_that_they_have_more_sources_than_were_met(sources: int, said: str) -> None:
    rng = Random(9)
    hosts = [bytes([rng.randrange(20, 120)]) + rng.randbytes(3) for _ in range(sources)]
    frames = []
    for number in range(1500):
        body = udp(rng.randrange(1024, 65_000), 27015, b"pulse pulse")
        packet = ip(rng.choice(hosts), bytes([10, 0, 0, 9]), 17, body, ttl=rng.randrange(40, 60))
        frames.append((number / 1000, ethernet(packet)))
    window = make_window(make_batch(frames, weight=50.0), 1.5, live=True)
    (attack,) = Advisor().judge(window, make_tables(window)).attacks
    assert said in attack.evidence[0]


@pytest.mark.parametrize(("late", "seconds"), [(0.0, 4.9), (3e9, 3e9)])
def test_the_peak_is_that_of_one_second_whatever_the_clock_does(late: float, seconds: float) -> None:
    rng = Random(12)
    frames = [(at / 500, ethernet(_datagram(rng, 27015, b"pulse pulse"))) for at in range(2450)]
    frames.append((late or frames[-1][0], frames[-1][1]))
    traffic = Traffic.of(make_window(make_batch(frames), seconds), AdviseConfig())
    assert Features(traffic, np.arange(len(traffic))).peak_pps == pytest.approx(500, abs=2)


@pytest.mark.parametrize(("packets", "length"), [(400, "in 0.4 s"), (12_000, "in 12 s")])
def test_counts_name_the_window_that_they_are_of(packets: int, length: str) -> None:
    rng = Random(14)
    evidence = _evidence([_datagram(rng, 27015, b"pulse pulse") for _ in range(packets)])
    assert f"{packets:,} UDP packets {length} to port 27015" in evidence[0]
