"""Capture files of every format: intact, truncated, broken and foreign."""

import gzip
import io
import random
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from capture_files import CAPTURES, enhanced, interface, obsolete, option, pcap, section, simple
from frames import ethernet, ipv4, ipv6, pppoe, tcp, udp

from fwtop.capture.reader import read_capture
from fwtop.capture.records import MAX_WIDTH
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import FLAG_OUTBOUND, PacketBatch

START_NS = 1_700_000_000_123_456_789
FOUR = ipv4(udp(53, 4000, b"four"), 17, "192.0.2.4")
SIX = ipv6(tcp(443, 5000, 18, b"six"), 6)
FRAME = ethernet(FOUR, 0x0800)


def read(data: bytes) -> tuple[PacketBatch, list[str]]:
    capture = read_capture(io.BytesIO(data), "x.pcap")
    return PacketBatch.concat(list(capture.batches())), capture.notes


def sample(count: int = 3) -> list[tuple[int, bytes, int]]:
    return [(START_NS + i * 1_000_000, FRAME, len(FRAME) + i) for i in range(count)]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [True, False])
def test_pcap_in_both_byte_orders_and_resolutions(order: str, nano: bool) -> None:
    batch, notes = read(pcap(sample(), order=order, nano=nano))
    resolution = 1 if nano else 1000
    expected = [(time // resolution) * resolution for time, _, _ in sample()]
    assert batch.time_ns.tolist() == expected
    assert batch.length.tolist() == [len(FRAME), len(FRAME) + 1, len(FRAME) + 2]
    assert batch.sport.tolist() == [53] * 3
    assert batch.data[0, : len(FRAME)].tobytes() == FRAME
    assert notes == []


def test_runs_of_one_size_and_changes_of_size_keep_the_order() -> None:
    chance = random.Random(7)
    packets = []
    for number in range(5000):
        size = 8 if number % 1000 < 600 else chance.randrange(900)
        frame = ethernet(ipv4(udp(number, size, b"p" * size), 17), 0x0800)
        packets.append((START_NS + number, frame, len(frame)))
    batch, notes = read(pcap(packets, nano=True))
    assert batch.sport.tolist() == list(range(5000))
    assert batch.length.tolist() == [length for _, _, length in packets]
    assert batch.time_ns.tolist() == [time for time, _, _ in packets]
    for row in range(0, 5000, 37):
        kept = packets[row][1][:MAX_WIDTH]
        assert batch.data[row].tobytes() == kept.ljust(batch.data.shape[1], b"\0")
    assert notes == []


def test_a_file_larger_than_the_reader_s_memory_is_read_in_parts() -> None:
    frame = ethernet(ipv4(udp(1, 2, b"w" * 1400), 17), 0x0800)
    count = 9000  # 13 MB
    capture = read_capture(io.BytesIO(pcap([(i, frame, len(frame)) for i in range(count)], nano=True)), "x")
    times = np.concatenate([batch.time_ns for batch in capture.batches()])
    assert times.tolist() == list(range(count))


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_sections_interfaces_and_every_packet_block(order: str) -> None:
    offset_s = (5).to_bytes(8, "little" if order == "<" else "big")
    nano = option(9, b"\x09", order) + option(14, offset_s, order)
    data = (
        section(order)
        + interface(order=order)
        + interface(101, order=order, options=nano)
        + enhanced(FRAME, 7_000_000, order=order, length=99)
        + enhanced(SIX, 8_000_000_001, number=1, order=order, options=option(2, b"\0\0\0\1", order))
        + simple(FRAME, order=order)
        + obsolete(FOUR, 9_000_000_002, number=1, order=order)
        + section("<")
        + interface(options=option(9, bytes([0x80 | 10])))
        + enhanced(FRAME, 3 * 1024 + 512)
    )  # fmt: skip
    batch, notes = read(data)
    assert batch.time_ns.tolist() == [
        7_000_000_000, 13_000_000_001, 13_000_000_001, 14_000_000_002, 3_500_000_000,
    ]  # fmt: skip
    assert batch.family.tolist() == [4, 6, 4, 4, 4]
    assert batch.length.tolist() == [99, len(SIX), len(FRAME), len(FOUR), len(FRAME)]
    assert notes == []


def test_a_simple_packet_is_cut_by_the_snap_length() -> None:
    batch, _ = read(section() + interface(snap=20) + simple(FRAME[:20], len(FRAME)))
    assert (batch.captured[0], batch.length[0]) == (20, len(FRAME))


def sll(packet: bytes, ethertype: int, kind: int) -> bytes:
    return kind.to_bytes(2, "big") + b"\0\1\0\6" + b"\2" * 8 + ethertype.to_bytes(2, "big") + packet


def sll2(packet: bytes, ethertype: int, kind: int) -> bytes:
    return ethertype.to_bytes(2, "big") + b"\0\0\0\0\0\3\0\1" + bytes([kind, 6]) + b"\2" * 8 + packet


def pflog(packet: bytes, length: int) -> bytes:
    return bytes([length]) + b"\2" * (length - 1 + -length % 4) + packet


def nflog(packet: bytes, order: str, *others: bytes) -> bytes:
    """A record of the log of Netfilter: attributes, the packet behind `others`."""
    attributes = [(1, b"\x08\0\1\0"), *((10, text) for text in others), (9, packet)]
    padded = [
        struct.pack(f"{order}HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
        for kind, value in attributes
    ]
    return b"\2\0\0\5" + b"".join(padded)


LINKS = [
    (101, FOUR, SIX), (12, FOUR, SIX), (14, FOUR, SIX), (228, FOUR, FOUR), (229, SIX, SIX),
    (0, b"\2\0\0\0" + FOUR, b"\x1e\0\0\0" + SIX), (108, b"\0\0\0\2" + FOUR, b"\0\0\0\x1e" + SIX),
    (9, b"\0\x21" + FOUR, b"\xff\3\0\x57" + SIX), (50, b"\xff\3\x21" + FOUR, b"\x0f\0\0\x57" + SIX),
    (51, pppoe(FOUR), pppoe(SIX, 0x57)), (117, pflog(FOUR, 61), pflog(SIX, 64)),
    (239, nflog(FOUR, "<"), nflog(SIX, "<", b"a prefix\0", b"x")),
    (239, nflog(FOUR, ">", b"y"), nflog(SIX, ">")),
    (113, sll(FOUR, 0x0800, 0), sll(SIX, 0x86DD, 4)), (276, sll2(FOUR, 0x0800, 0), sll2(SIX, 0x86DD, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("link_type", "first", "second"), LINKS)
def test_packets_of_each_link_type_are_found_behind_its_header(
    link_type: int, first: bytes, second: bytes
) -> None:
    batch, notes = read(pcap([(1, first, len(first)), (2, second, len(second))], link_type=link_type))
    assert notes == []
    assert batch.family.tolist() == [6 if FOUR not in data else 4 for data in (first, second)]
    assert set(batch.sport.tolist()) <= {53, 443}
    assert batch.length.tolist() == [len(first), len(second)]
    for row in range(2):
        at = int(batch.payload_offset[row])
        text = b"six" if batch.family[row] == 6 else b"four"
        assert batch.data[row, at : at + len(text)].tobytes() == text
        assert batch.ethertype[row] == (0x86DD if batch.family[row] == 6 else 0x0800)
    outbound = (batch.flags & FLAG_OUTBOUND != 0).tolist()
    assert outbound == [False, link_type in (113, 276)]


def test_a_log_record_without_a_packet_is_none() -> None:
    empty = [b"", b"\2\0\0\5", b"\2\0\0\5" + bytes(400), nflog(FOUR, "<")[: -len(FOUR)], b"\xff" * 99]
    batch, _ = read(pcap([(i, data, len(data)) for i, data in enumerate(empty)], link_type=239))
    assert batch.family.tolist() == [0] * len(empty)


def test_vlan_inside_a_cooked_capture() -> None:
    frame = sll(b"\0\x2a\x08\0" + FOUR, 0x8100, 0)
    batch, _ = read(pcap([(1, frame, len(frame))], link_type=113))
    assert (batch.vlan[0], batch.sport[0]) == (42, 53)


@pytest.mark.parametrize("make", [pcap, lambda packets: section() + interface() + b"".join(
    enhanced(data, time // 1000, length=length) for time, data, length in packets)])  # fmt: skip
def test_truncated_gzip_is_read_up_to_the_end(make: object) -> None:
    whole = make(sample(40))  # type: ignore[operator]
    packed = gzip.compress(whole[:500]) + gzip.compress(whole[500:])
    batch, notes = read(packed)
    assert (len(batch), notes) == (40, [])
    for size in range(30, len(packed) - 1, 7):
        try:
            cut, notes = read(packed[:size])
        except FwtopError:
            continue
        assert len(cut) < 40 or notes
    batch, notes = read(gzip.compress(whole)[:-9])
    assert len(batch) >= 30
    assert notes


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 60])
def test_a_truncated_last_record_is_noted(cut: int) -> None:
    whole = pcap(sample())
    batch, notes = read(whole[: -len(FRAME) - 16 + cut] if cut != 60 else whole[:-1])
    assert len(batch) == 2
    assert "cut off" in notes[0]


def test_a_broken_record_or_block_ends_reading_with_a_note() -> None:
    broken = pcap(sample()) + b"\xff" * 64
    batch, notes = read(broken)
    assert (len(batch), "broken" in notes[0]) == (3, True)
    batch, notes = read(section() + interface() + enhanced(FRAME, 1) + b"\6\0\0\0\7\0\0\0" + b"\0" * 40)
    assert (len(batch), "impossible" in notes[0]) == (1, True)
    batch, notes = read(section() + interface() + enhanced(FRAME, 1) + enhanced(FRAME, 2, number=9))
    assert (len(batch), "unknown interface" in notes[0]) == (1, True)


def test_unsupported_link_types_are_left_out_or_refused() -> None:
    batch, notes = read(
        section() + interface(105) + interface() + enhanced(b"?" * 40, 1) + enhanced(FRAME, 2, number=1)
    )
    assert (len(batch), "105" in notes[0]) == (1, True)
    with pytest.raises(FwtopError, match="link type 105"):
        read(section() + interface(105) + enhanced(b"?" * 40, 1))
    with pytest.raises(FwtopError, match="link type 127"):
        read(pcap(sample(), link_type=127))


FORMATS = {
    **{b"snoop\0\0\0": "snoop", b"GMBU": "editcap", b"\x34\xcd\xb2\xa1": "editcap", b"BZh9": "bunzip2"},
    **{b"PK\3\4": "unzip", b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"},
    gzip.compress(gzip.compress(b"", mtime=0), mtime=0): "within gzip",
}


@pytest.mark.parametrize(("start", "said"), FORMATS.items())
def test_unsupported_formats_are_named_with_a_remedy(start: bytes, said: str) -> None:
    with pytest.raises(FwtopError, match=said) as caught:
        read(start + bytes(100))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stray", [0, 4_294_967_295 * 10**9])
@pytest.mark.parametrize("place", [0, 1, 9])
def test_a_stray_time_does_not_stretch_the_capture(stray: int, place: int) -> None:
    packets = sample(9)
    packets.insert(place, (stray, FRAME, len(FRAME)))
    batch, notes = read(pcap(packets, nano=True))
    assert len(batch) == 10
    assert int(batch.time_ns.max()) - int(batch.time_ns.min()) == 8_000_000
    assert notes == ["1 packet has an impossible time; replaced by those of neighbouring packets"]


def test_plausible_times_out_of_order_are_kept() -> None:
    backwards = [START_NS - i * 1_000_000_000 for i in range(20)]
    for times in (backwards, [0] * 5, [4_294_967_295 * 10**9] * 5):
        batch, notes = read(pcap([(time, FRAME, len(FRAME)) for time in times], nano=True))
        assert (batch.time_ns.tolist(), notes) == (times, [])


def test_times_at_both_ends_of_64_bits_are_replaced() -> None:
    far = section() + interface(options=option(9, b"\x09"))
    far += b"".join(enhanced(FRAME, ticks) for ticks in (1 << 62, (1 << 62) + 5, (1 << 63) + 9))
    batch, notes = read(far)
    assert batch.time_ns.tolist() == [1 << 62, (1 << 62) + 5, 1 << 62]
    assert len(notes) == 1


@pytest.mark.parametrize("claimed", [0, 0xFFFFFFFF])
def test_an_impossible_size_on_the_wire_is_replaced_by_the_captured_size(claimed: int) -> None:
    batch, _ = read(pcap([(START_NS, FRAME, claimed)]))
    assert batch.length.tolist() == [len(FRAME)]


FOREIGN = [
    b"",
    b"hello",
    b"\x1f\x8b",
    b"\x1f\x8bgarbage",
    gzip.compress(b"text", mtime=0),
    b"\x7fELF" + b"\0" * 99,
]


@pytest.mark.parametrize("data", [*FOREIGN, pcap([])[:10]])
def test_foreign_files_give_one_line(data: bytes) -> None:
    with pytest.raises(FwtopError) as caught:
        read(data)
    assert caught.value.code == 1
    assert "\n" not in str(caught.value)
    assert "x.pcap" in str(caught.value)


def test_an_empty_capture() -> None:
    assert len(read(pcap([]))[0]) == 0
    assert len(read(section())[0]) == 0


def test_a_missing_file_and_a_directory_give_one_line(tmp_path: Path) -> None:
    with pytest.raises(FwtopError, match="No such file"):
        read_capture(tmp_path / "no\x1b[31mne.pcap")
    with pytest.raises(FwtopError, match="is a directory, not a capture"):
        read_capture(tmp_path)


def test_mutated_files_never_raise_anything_else() -> None:
    chance = random.Random(11)
    seeds = [
        pcap(sample(9)),
        section() + interface() + interface(101, options=option(9, b"\xff") + option(14, b"\xff" * 8))
        + enhanced(FRAME, 5) + simple(FRAME) + enhanced(SIX, 1 << 60, number=1) + obsolete(FRAME, 9)
        + section(">") + interface(order=">") + enhanced(FRAME, 3, order=">"),
    ]  # fmt: skip
    for _ in range(500):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 255, chance.randrange(256)))
        try:
            read(bytes(data[: chance.randint(1, len(data))] if chance.random() < 0.3 else data))
        except FwtopError:
            continue


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="needs the captures")
@pytest.mark.parametrize(
    "name", ["amp.TCP.reflection.SYNACK.pcap", "amp.UDP.snmp.src161.pcapng", "amp.dns.RRSIG.fragmented.pcap"]
)
def test_real_captures_equal_tshark(name: str) -> None:
    wanted = ("frame.len", "ip.src", "ip.proto", "ip.ttl", "ip.id", "ip.len", "tcp.srcport", "udp.srcport",
              "tcp.flags", "ip.flags.mf", "ip.frag_offset")  # fmt: skip
    command = ["tshark", "-n", "-r", str(CAPTURES / name), "-T", "fields", "-E", "occurrence=f",
               "-E", "separator=,", "-o", "ip.defragment:FALSE"]  # fmt: skip
    for field in wanted:
        command += ["-e", field]
    lines = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    batch = PacketBatch.concat(list(read_capture(CAPTURES / name).batches()))
    assert len(lines) == len(batch)
    for row, line in enumerate(lines):
        length, src, proto, ttl, ident, ip_length, tcp_port, udp_port, flags, more, place = line.split(",")
        assert int(batch.length[row]) == int(length)
        if not src:
            assert batch.family[row] != 4
            continue
        assert ".".join(str(int(batch.src_lo[row]) >> shift & 255) for shift in (24, 16, 8, 0)) == src
        assert (batch.protocol[row], batch.ttl[row], batch.ip_length[row]) == (
            int(proto),
            int(ttl),
            int(ip_length),
        )
        assert batch.ip_id[row] == int(ident, 16)
        later, first = int(place) > 0, more in ("1", "True")
        assert batch.fragment[row] == (2 if later else 1 if first else 0)
        if not later and int(proto) in (6, 17):
            assert int(batch.sport[row]) == int(tcp_port or udp_port)
        if not later and int(proto) == 6:
            assert int(batch.tcp_flags[row]) == int(flags, 16) & 0xFF
