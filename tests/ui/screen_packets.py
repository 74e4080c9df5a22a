"""Packets for the Packets tab: a SYN flood with clients between, and whatever bytes a test wants."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from screen_parts import NOW

from fwtop.analysis.packets.recent import Fate, PacketList, Verdict, kinds_of
from fwtop.model.traffic.packets import PacketBatch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from frames import batch_of, ethernet, ipv4, ipv6, tcp, udp

OPTIONS = bytes.fromhex("020405b40402080a00000001000000000103030a")[:20]
QUESTION = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\x07example\x03org\0\0\xff\0\1"
MINE, OTHER = Verdict(Fate.MINE, "rule 118"), Verdict(Fate.OTHER, "NETFILTER_DROP")
KERNEL, REACHES = Verdict(Fate.KERNEL, "TCP_OLD_DATA"), Verdict(Fate.REACHES, "accepted")
LIKELY = Verdict(Fate.MINE, "rule 118", inferred=True)
UNKNOWN = Verdict(Fate.UNKNOWN)
LONG = "2001:db8:1234:5678:9abc:def0:1234:5678"


def syn(number: int) -> bytes:
    source = f"198.{number % 200}.{number % 250}.{number % 240 + 1}"
    segment = tcp(1024 + number * 7 % 60_000, 80, 2, seq=number * 2_654_435_761 % (1 << 32), window=512)
    return ethernet(ipv4(segment, 6, source, "10.0.0.1", ttl=40 + number % 20, ident=0), 0x0800)


def client(number: int) -> bytes:
    segment = tcp(40_000 + number, 80, 2, seq=number, options=OPTIONS, window=64_240)
    return ethernet(ipv4(segment, 6, "168.57.1.3", "10.0.0.1", ttl=57), 0x0800)


def carrying(data: bytes) -> bytes:
    return ethernet(ipv4(udp(4444, 53, data), 17, "203.0.113.77", "10.0.0.1"), 0x0800)


OTHERS = (
    ethernet(ipv6(tcp(50_000, 443, 0x18, b"GET / HTTP/1.1\r\n"), 6, LONG, "2001:db8::2"), 0x86DD),
    ethernet(ipv4(udp(4444, 53, QUESTION), 17, "203.0.113.77", "10.0.0.1"), 0x0800),
    ethernet(b"\0" * 28, 0x0806),
)


def listed(
    frames: list[bytes], verdicts: list[Verdict] | None = None, who: list[str] | None = None, first: int = 0
) -> PacketList:
    batch: PacketBatch = batch_of(frames)
    n = len(batch)
    places, kinds = kinds_of((verdicts or [UNKNOWN] * n)[:n])
    times = (first + np.arange(n, dtype=np.int64)) * 1_000_000
    return PacketList(
        PacketBatch(**{**{f: getattr(batch, f) for f in batch.__struct_fields__}, "time_ns": times}),
        first + np.arange(n, dtype=np.int64),
        int(NOW * 1e9),
        np.array((who or [""] * n)[:n], "<U12"),
        places,
        kinds,
        seen=first + n,
    )


def flood(count: int = 60, first: int = 0) -> PacketList:
    """Return packets of a flood; every tenth is a client's, and the last three are of other kinds."""
    frames, verdicts, who = [], [], []
    for number in range(first, first + count - len(OTHERS)):
        is_client = number % 10 == 9
        frames.append(client(number) if is_client else syn(number))
        verdicts.append(REACHES if is_client else LIKELY if number % 3 else MINE)
        who.append("client" if is_client else "attack")
    return listed(
        [*frames, *OTHERS], [*verdicts, KERNEL, OTHER, UNKNOWN], [*who, "you", "time server", ""], first
    )
