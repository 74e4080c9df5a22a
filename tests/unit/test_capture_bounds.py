"""Hostile capture files: their cost is bounded, measured in bytes and calls instead of time."""

import gzip
import io
import struct
import tracemalloc

import pytest
from capture_files import block, enhanced, interface, option, pcap, section
from frames import ethernet, ipv4, udp
from isal import isal_zlib

from fwtop.capture import pcap as formats
from fwtop.capture import records as capture_records
from fwtop.capture.reader import read_capture
from fwtop.capture.records import Records, Stream, to_batch
from fwtop.model.traffic.packets import PacketBatch

FRAME = ethernet(ipv4(udp(53, 4000, b"four"), 17, "192.0.2.4"), 0x0800)
START_NS = 1_700_000_000_123_456_789


def read(data: bytes) -> tuple[int, list[str]]:
    capture = read_capture(io.BytesIO(data), "x.pcap")
    return sum(map(len, capture.batches())), capture.notes


def test_a_file_of_interfaces_ends_with_a_note_and_takes_little_memory() -> None:
    """48 KB of gzip used to become 68 MB of interface descriptions."""
    packed = gzip.compress(section() + enhanced_file(1) + interface() * 800_000)
    assert len(packed) < 48_000
    tracemalloc.start()
    try:
        count, notes = read(packed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1
    assert notes == ["a section describes more than 4,096 interfaces (after packet 1); read up to there"]
    assert peak < 32 << 20


def enhanced_file(packets: int) -> bytes:
    """An interface and its packets."""
    return interface() + b"".join(enhanced(FRAME, START_NS // 1000 + i) for i in range(packets))


def test_packets_of_thousands_of_interfaces_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(stream: Stream, records: Records) -> PacketBatch:
        calls.append(len(records.start))
        return to_batch(stream, records)

    monkeypatch.setattr(formats, "to_batch", counted)
    packets = b"".join(enhanced(FRAME, START_NS // 1000 + i, number=i) for i in range(4096))
    count, notes = read(section() + interface() * 4096 + packets)
    assert (count, notes) == (4096, [])
    assert len(calls) <= 2


@pytest.mark.parametrize("between", [section() + interface(), block(5, bytes(12))])
def test_packets_between_other_blocks_come_in_few_batches(between: bytes) -> None:
    """A batch costs some milliseconds to count: 5,000 joined captures of a packet took half a minute."""
    packets = [enhanced(FRAME, START_NS // 1000 + i) for i in range(3000)]
    file = section() + interface() + b"".join(packet + between for packet in packets)
    capture = read_capture(io.BytesIO(file), "x.pcap")
    batches = list(capture.batches())
    assert [int(time) for batch in batches for time in batch.time_ns] == [
        (START_NS // 1000 + i) * 1000 for i in range(3000)
    ]
    assert len(batches) <= 2


def test_a_file_of_sections_ends_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_MAX_SECTIONS", 3)
    count, notes = read((section() + enhanced_file(2)) * 4)
    assert count == 6
    assert notes == ["there are more than 3 sections (after packet 6); read up to there"]


def test_only_a_few_of_many_unsupported_link_types_are_named() -> None:
    strange = b"".join(interface(kind) for kind in range(1000, 2000))
    count, notes = read(section() + enhanced_file(1) + strange)
    assert count == 1
    assert len(notes) == 9
    assert notes[-1] == "and those of 992 more link types"


class CountedBytes(bytes):
    """Bytes that count how many of them were copied by slicing."""

    copied = 0

    def __getitem__(self, key: object) -> "CountedBytes":  # type: ignore[override]
        part = super().__getitem__(key)  # type: ignore[call-overload]
        type(self).copied += len(part)
        return CountedBytes(part)


def test_options_are_read_in_one_pass() -> None:
    CountedBytes.copied = 0
    data = CountedBytes(option(1, b"") * 10_000 + option(9, b"\x09") + option(14, struct.pack("<q", 5)))
    reader = formats.PcapngReader(Stream(io.BytesIO(), b""), [])
    assert reader._options(data) == {9: b"\x09", 14: struct.pack("<q", 5)}
    assert CountedBytes.copied < 100


def test_a_megabyte_of_options_is_read() -> None:
    long = block(1, struct.pack("<HHI", 1, 0, 0) + option(1, b"") * 250_000 + option(9, b"\x09"))
    count, notes = read(section() + long + enhanced(FRAME, START_NS))
    assert (count, notes) == (1, [])


class CountedInflate:
    """A decompressor that counts what it is given."""

    given = 0

    def __init__(self, window: int) -> None:
        self._real = ORIGINAL(window)

    def decompress(self, data: bytes, most: int) -> bytes:
        type(self).given += len(data)
        return self._real.decompress(data, most)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


ORIGINAL = isal_zlib.decompressobj


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> type[CountedInflate]:
    CountedInflate.given = 0
    monkeypatch.setattr(capture_records.isal_zlib, "decompressobj", CountedInflate)
    return CountedInflate


def test_tiny_gzip_members_are_decompressed_once(inflated: type[CountedInflate]) -> None:
    """Each end of a member used to copy the quarter of a megabyte behind it."""
    whole = pcap([(START_NS + i, FRAME, len(FRAME)) for i in range(200)])
    packed = b"".join(gzip.compress(whole[i : i + 1]) for i in range(len(whole)))
    count, notes = read(packed)
    assert (count, notes) == (200, [])
    assert inflated.given < 32 * len(packed)


def test_a_long_gzip_member_is_copied_once(inflated: type[CountedInflate]) -> None:
    whole = pcap([(START_NS + i, FRAME, len(FRAME)) for i in range(100_000)])
    packed = gzip.compress(whole, 1)
    count, notes = read(packed)
    assert (count, notes) == (100_000, [])
    assert inflated.given < 4 * len(packed)


def test_reading_stops_after_thousands_of_empty_gzip_members() -> None:
    whole = pcap([(START_NS, FRAME, len(FRAME))])
    first, second = gzip.compress(whole), gzip.compress(whole[24:])
    count, notes = read(first + gzip.compress(b"") * 900 + second)
    assert (count, notes) == (2, [])
    count, notes = read(first + gzip.compress(b"") * 20_000 + second)
    assert count == 1
    assert notes == [
        "the file cannot be read further (more than 1,000 empty gzip members in a row); read up to there"
    ]
