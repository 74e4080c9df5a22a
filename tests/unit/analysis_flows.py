"""Packets that follow each other as tools and hosts send them, and what is found in them."""

from __future__ import annotations

from random import Random

from analysis_factory import FLAGS, ethernet, ip, make_batch, make_tables, make_window, tcp

from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.snapshot import Incident

HOST = bytes([10, 10, 10, 10])
OPTIONS = bytes.fromhex("020405b40402080a") + bytes(8) + bytes.fromhex("01030307")
STAMPS = bytes.fromhex("0101080a") + bytes(8)
Frame = tuple[float, bytes]


def judge(frames: list[Frame], *, snap: int = 216, seconds: float = 4.0) -> dict[str, Incident]:
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
