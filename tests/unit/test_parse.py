"""The vectorised parser against a slow one, on well-formed, mutated and random packets."""

import random

import numpy as np
import pytest
from frames import MACS, batch_of, ethernet, extension, fragment6, ipv4, ipv6, mpls, pppoe, rows_of, tcp, udp
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_parser import reference

from fwtop.model.traffic.packets import (
    FLAG_IP_OPTIONS,
    FLAG_MALFORMED,
    FLAG_TRUNCATED,
    FLAG_TUNNEL,
    FLAG_VLAN,
    Fragment,
    PacketBatch,
)
from fwtop.parse.packets import parse_packets

SEEDS = [
    ethernet(ipv4(tcp(1234, 80), 6), 0x0800),
    ethernet(ipv4(tcp(1234, 80, 24, b"GET / HTTP/1.1\r\n", options=b"\1" * 12), 6), 0x0800),
    ethernet(ipv4(udp(53, 4444, b"x" * 40), 17), 0x0800),
    ethernet(ipv4(b"\x08\x00\0\0\0\1\0\1ping", 1), 0x0800),
    ethernet(ipv4(udp(53, 4444, b"y" * 30), 17, options=b"\1" * 8), 0x0800),
    ethernet(ipv4(udp(53, 4444, b"z" * 30, length=3000), 17, frag=0x2000), 0x0800),
    ethernet(ipv4(b"q" * 40, 17, frag=185), 0x0800),
    ethernet(ipv4(b"\0\0\x08\0", 47), 0x0800),
    ethernet(ipv4(b"\1\2\3\4" * 5, 50), 0x0800),
    ethernet(ipv4(b"\x11\x64\0\0", 2), 0x0800),
    ethernet(ipv4(udp(1, 2, b"abc"), 17), 0x0800, ((0x8100, 42),)),
    ethernet(ipv4(tcp(1, 2), 6), 0x0800, ((0x88A8, 100), (0x8100, 42))),
    ethernet(ipv4(tcp(1, 2), 6), 0x0800, ((0x8100, 5),) * 5),
    ethernet(ipv6(tcp(1234, 443, 16, b"hi"), 6), 0x86DD),
    ethernet(ipv6(udp(123, 456, b"ntp"), 17), 0x86DD, ((0x8100, 7),)),
    ethernet(ipv6(b"\x80\0\0\0\0\1\0\2", 58), 0x86DD),
    ethernet(ipv6(extension(60) + extension(6, b"\0" * 14) + tcp(9, 10), 0), 0x86DD),
    ethernet(ipv6(extension(43) + extension(44) + fragment6(17, 0, 1) + udp(5, 6, b"f"), 0), 0x86DD),
    ethernet(ipv6(fragment6(17, 20, 1) + b"later" * 9, 44), 0x86DD),
    ethernet(ipv6(fragment6(6, 0, 0) + tcp(5, 6), 44), 0x86DD),
    ethernet(ipv6(bytes([6, 4]) + b"\0" * 22 + tcp(5, 6), 51), 0x86DD),
    ethernet(ipv6(b"", 59), 0x86DD),
    ethernet(ipv6(extension(0) * 14, 0), 0x86DD),
    ethernet(b"\0\1\x08\0\6\4\0\1" + b"\0" * 20, 0x0806),
    ethernet(ipv4(b"\0\1\0\2" + b"s" * 12, 132), 0x0800),
    ethernet(ipv4(tcp(3, 4), 6, total=0), 0x0800),
    ethernet(pppoe(ipv4(udp(1, 2, b"abc"), 17)), 0x8864),
    ethernet(pppoe(ipv6(tcp(5, 6), 6), 0x57), 0x8864, ((0x8100, 7),)),
    ethernet(pppoe(b"\1\2\0\4", 0xC021), 0x8864),
    ethernet(mpls(ipv4(udp(1, 2, b"abc"), 17), 16), 0x8847),
    ethernet(mpls(ipv6(tcp(5, 6), 6), 16, 17, 2), 0x8847, ((0x88A8, 7),)),
    ethernet(mpls(b"\0\0\0\0" + MACS, 16), 0x8848),
    ethernet(mpls(ipv4(tcp(1, 2), 6), *range(16, 25)), 0x8847),
    b"\1\2\3",
    b"",
]


def same(frames: list[bytes], lengths: list[int], width: int, whole: bool) -> None:
    data, captured = rows_of(frames, width)
    n = len(frames)
    batch = parse_packets(
        data, captured, link=1, length=np.array(lengths, np.uint32), time_ns=np.zeros(n, np.int64),
        weight=np.ones(n), hook=1, whole=whole,
    )  # fmt: skip
    for row, (frame, length) in enumerate(zip(frames, lengths, strict=True)):
        expected = reference(frame[:width], length, whole)
        got = {name: int(getattr(batch, name)[row]) for name in expected if name not in ("src", "dst")}
        got["src"] = int(batch.src_hi[row]) << 64 | int(batch.src_lo[row])
        got["dst"] = int(batch.dst_hi[row]) << 64 | int(batch.dst_lo[row])
        assert got == expected, (row, frame.hex(), length)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("width", [216, 60, 34, 15, 4, 0])
def test_every_kind_of_packet_equals_the_reference_at_any_sample_width(width: int, whole: bool) -> None:
    same(SEEDS, [len(frame) for frame in SEEDS], width, whole)


def test_every_truncation_of_every_packet_equals_the_reference() -> None:
    cuts = [(frame[:size], len(frame)) for frame in SEEDS for size in range(len(frame) + 1)]
    same([cut for cut, _ in cuts], [length for _, length in cuts], 216, True)
    same([cut for cut, _ in cuts], [len(cut) for cut, _ in cuts], 216, True)


def test_mutated_packets_equal_the_reference() -> None:
    chance = random.Random(20261121)
    frames = []
    for _ in range(20_000):
        frame = bytearray(chance.choice(SEEDS[:-2]))
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(min(len(frame), 80))] = chance.choice(
                (0, 255, 0x45, 44, 6, chance.randrange(256))
            )
        frames.append(bytes(frame[: chance.randint(1, len(frame))] if chance.random() < 0.2 else frame))
    lengths = [max(0, len(frame) + chance.choice((0, 0, 0, 4, 1000, -3))) for frame in frames]
    same(frames, lengths, 128, True)
    same(frames, lengths, 128, False)


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=90), max_size=20), st.integers(0, 100), st.booleans())
def test_random_bytes_never_raise_and_equal_the_reference(
    frames: list[bytes], width: int, whole: bool
) -> None:
    same(frames, [len(frame) for frame in frames], width, whole)


def one(frame: bytes, **kwargs: object) -> PacketBatch:
    return batch_of([frame], **kwargs)  # type: ignore[arg-type]


def test_vlan_is_the_outermost_and_ethertype_the_innermost() -> None:
    batch = one(SEEDS[11])
    assert (batch.vlan[0], batch.ethertype[0], batch.flags[0]) == (100, 0x0800, FLAG_VLAN)
    assert (batch.sport[0], batch.dport[0], batch.protocol[0]) == (1, 2, 6)


@pytest.mark.parametrize(
    "packet", [ipv4(udp(53, 9, b"load"), 17, ttl=60), ipv6(udp(53, 9, b"load"), 17, hops=60)]
)
def test_ip_is_found_behind_pppoe_and_mpls(packet: bytes) -> None:
    six = packet[0] >> 4 == 6
    frames = [ethernet(pppoe(packet, 0x57 if six else 0x21), 0x8864), ethernet(mpls(packet, 9, 10), 0x8847)]
    batch = batch_of([*frames, ethernet(pppoe(packet, 0x57 if six else 0x21), 0x8864, ((0x8100, 5),))])
    assert batch.ethertype.tolist() == [0x86DD if six else 0x0800] * 3
    assert (batch.sport.tolist(), batch.ttl.tolist()) == ([53] * 3, [60] * 3)
    for row, at in enumerate(batch.payload_offset.tolist()):
        assert batch.data[row, at : at + 4].tobytes() == b"load"


def test_first_and_later_fragments() -> None:
    first, later = one(SEEDS[5]), one(SEEDS[6])
    assert (first.fragment[0], first.sport[0], first.payload_length[0]) == (Fragment.FIRST, 53, 30)
    assert (later.fragment[0], later.sport[0], later.payload_length[0]) == (Fragment.LATER, 0, 40)
    first6, later6 = one(SEEDS[17]), one(SEEDS[18])
    assert (first6.fragment[0], first6.dport[0], first6.ip_id[0]) == (Fragment.FIRST, 6, 99)
    assert (later6.fragment[0], later6.protocol[0], later6.dport[0]) == (Fragment.LATER, 17, 0)
    assert one(SEEDS[19]).fragment[0] == Fragment.NONE, "an atomic fragment is a whole packet (RFC 6946)"


def test_flags_of_bad_packets() -> None:
    assert one(SEEDS[7]).flags[0] & FLAG_TUNNEL
    assert one(SEEDS[4]).flags[0] & FLAG_IP_OPTIONS
    assert one(SEEDS[0], width=30).flags[0] & FLAG_TRUNCATED
    lying = ethernet(ipv4(tcp(1, 2), 6, total=900), 0x0800)
    assert one(lying).flags[0] & FLAG_MALFORMED
    assert not one(lying, whole=False).flags[0] & FLAG_MALFORMED, (
        "GRO joins packets: the length is an average"
    )


def test_bare_ip_gets_a_link_header() -> None:
    four, six = ipv4(udp(1, 2, b"pay"), 17), ipv6(udp(3, 4, b"load"), 17)
    mixed = batch_of([four, six, b"\xff\xff"], link=0)
    assert mixed.ethertype.tolist() == [0x0800, 0x86DD, 0]
    assert mixed.sport.tolist() == [1, 3, 0]
    assert mixed.captured.tolist() == [len(four) + 14, len(six) + 14, 16]
    at = mixed.payload_offset[1]
    assert mixed.data[1, at : at + 4].tobytes() == b"load"
    assert mixed.length.tolist() == [len(four), len(six), 2], "the length on the wire stays as it was given"


def test_no_packets_make_an_empty_batch() -> None:
    assert len(batch_of([])) == 0
